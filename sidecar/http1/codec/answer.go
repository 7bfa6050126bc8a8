package codec

import (
	"net/http"
	"strconv"
)

// ReasonField is the field of an answer that says why a sidecar refused or
// failed a request; lower case.
const ReasonField = "x-heddle-reason"

// Answer is what an answer of our own has to regard.
type Answer struct {
	Quiet     bool // leave the reason's field out
	Close     bool // the connection ends after it
	KeepAlive bool // the client has to be told that it does not
	NoBody    bool // it answers HEAD
}

// AppendAnswer appends the answer that tells a client of the fault.
func (f *Fault) AppendAnswer(o []byte, a Answer) []byte {
	text := http.StatusText(f.Status)
	if text == "" {
		text = "Error"
	}
	o = append(o, "HTTP/1.1 "...)
	o = strconv.AppendInt(o, int64(f.Status), 10)
	o = append(append(o, ' '), text...)
	o = append(o, "\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: "...)
	o = strconv.AppendInt(o, int64(len("heddle: \n")+len(f.Detail)), 10)
	if !a.Quiet {
		o = append(append(append(append(o, "\r\n"...), ReasonField...), ": "...), f.Reason...)
	}
	switch {
	case a.Close:
		o = append(o, "\r\nConnection: close"...)
	case a.KeepAlive:
		o = append(o, "\r\nConnection: keep-alive"...)
	}
	o = append(o, "\r\n\r\n"...)
	if !a.NoBody {
		o = append(append(append(o, "heddle: "...), f.Detail...), '\n')
	}
	return o
}
