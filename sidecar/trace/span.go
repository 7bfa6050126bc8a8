package trace

import (
	"bytes"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/heddle-mesh/heddle/internal/telemetry"
	"github.com/heddle-mesh/heddle/internal/telemetry/spans"
	"github.com/heddle-mesh/heddle/internal/telemetry/spans/key"
	"github.com/heddle-mesh/heddle/sidecar/http1"
)

// maxText bounds an attribute that a client wrote.
const maxText = 1024

// noState removes a tracestate: an empty one says nothing (W3C Trace Context,
// 3.3.1.1).
const noState = fieldState + ": \r\n"

// about is what a sampled request says of itself, for its spans.
type about struct {
	state    string
	badState bool // it must not go on
	name     string
	attrs    []spans.Attr
	attempts int
	last     string // what became of the last attempt
}

// methods are those that OpenTelemetry's conventions take as they are.
var methods = map[string]bool{"GET": true, "HEAD": true, "POST": true, "PUT": true, "DELETE": true,
	"CONNECT": true, "OPTIONS": true, "TRACE": true, "PATCH": true, "QUERY": true}

// aboutOf copies what spans need of a head. w3c: its tracestate counts.
func aboutOf(h *http1.Head, w3c bool) *about {
	a := &about{}
	switch state, bad := states(h); {
	case bad, !w3c && len(state) > 0:
		a.badState = true
	default:
		a.state = string(state)
	}
	// Names are of few kinds (OTel semantic conventions, HTTP spans, "Name"):
	// without a route there is only the method.
	if method := string(h.Method()); methods[method] {
		a.name = method
		a.text(key.HTTPMethod, method)
	} else {
		a.name = "HTTP"
		a.text(key.HTTPMethod, "_OTHER")
		a.text(key.HTTPMethodOriginal, method)
	}
	path := h.Target()
	if i := bytes.Index(path, []byte("://")); i > 0 && path[0] != '/' {
		path = path[i+len("://"):]
		path = path[len(path)-len(bytes.TrimLeft(path, "/")):]
		if j := bytes.IndexByte(path, '/'); j >= 0 {
			path = path[j:]
		} else {
			path = []byte("/")
		}
	}
	if i := bytes.IndexAny(path, "?#"); i >= 0 {
		path = path[:i] // queries hold secrets
	}
	a.text(key.URLPath, string(path))
	a.text(key.URLScheme, "http")
	a.text(key.NetworkVersion, "1."+strconv.Itoa(h.Minor))
	a.host(string(h.Host()))
	return a
}

// host says which server was meant.
func (a *about) host(host string) {
	name, port, err := net.SplitHostPort(host)
	if err != nil {
		name, port = host, ""
	}
	a.text(key.ServerAddress, name)
	if n, err := strconv.ParseUint(port, 10, 16); err == nil {
		a.number(key.ServerPort, int64(n))
	}
}

func (a *about) text(name, text string) { a.attrs = appendText(a.attrs, name, text) }

func (a *about) number(name string, n int64) {
	a.attrs = append(a.attrs, spans.Attr{Key: name, Number: n})
}

// appendText appends an attribute, unless there is nothing to say.
func appendText(attrs []spans.Attr, name, text string) []spans.Attr {
	if text == "" {
		return attrs
	}
	return append(attrs, spans.Attr{Key: name, Text: text[:min(len(text), maxText)]})
}

// Hop says where an attempt goes, or where a request comes from. Texts of
// unsampled requests are not looked at.
type Hop struct {
	Peer    string         // its SPIFFE ID; "" without mTLS
	Addr    netip.AddrPort // its address; zero: there is none
	Service string         // client: the Service called, namespace/name
}

// Result says what became of it.
type Result struct {
	Status int              // of the answer; 0: there is none
	Reason telemetry.Reason // why a sidecar refused or failed it
	Policy string           // that refused it
}

func (how Result) text() string {
	switch {
	case how.Reason != telemetry.ReasonOK:
		return string(how.Reason)
	case how.Status != 0:
		return strconv.Itoa(how.Status)
	}
	return noAnswer
}

// Start begins the span of an attempt, or of a request served, if the request
// is sampled. A server's goes on however often it is started; a client's that
// is under way is ended.
func (r *Request) Start(to Hop) {
	a := r.about
	if a == nil || r.span != nil && r.kind == spans.Server {
		return
	}
	r.End(Result{})
	a.attempts++
	s := r.newSpan(time.Now())
	if to.Addr.IsValid() {
		s.Attrs = appendText(s.Attrs, key.PeerAddress, to.Addr.Addr().String())
		if to.Addr.Port() != 0 {
			s.Attrs = append(s.Attrs, spans.Attr{Key: key.PeerPort, Number: int64(to.Addr.Port())})
		}
	}
	s.Attrs = appendText(s.Attrs, "heddle.peer", to.Peer)
	s.Attrs = appendText(s.Attrs, "heddle.service", to.Service)
	if r.kind == spans.Client {
		s.Attrs = append(s.Attrs, spans.Attr{Key: "heddle.attempt", Number: int64(a.attempts)})
		if a.attempts > 1 {
			s.Attrs = append(s.Attrs, spans.Attr{Key: key.HTTPResends, Number: int64(a.attempts - 1)})
			s.Attrs = appendText(s.Attrs, "heddle.retry", a.last)
		}
	}
	r.span = s
	r.fields = r.c.appendParent(r.fields[:0], s.ID)
	if a.badState {
		r.fields = append(r.fields, noState...)
	}
}

func (r *Request) newSpan(start time.Time) *spans.Span {
	a := r.about
	s := &spans.Span{Trace: r.c.trace, ID: newSpan(), Parent: r.c.parent, State: a.state,
		Kind: r.kind, Name: a.name, Start: start}
	s.Attrs = append(make([]spans.Attr, 0, len(a.attrs)+10), a.attrs...)
	return s
}

// Refused makes a span, from start to now, of a request that a sidecar
// answered itself, if it is sampled and the last attempt does not tell that
// already.
func (r *Request) Refused(service string, how Result, start time.Time) {
	if r.about == nil || how.Reason == telemetry.ReasonOK || r.about.last == string(how.Reason) {
		return
	}
	r.End(Result{})
	r.span = r.newSpan(start)
	r.span.Attrs = appendText(r.span.Attrs, "heddle.service", service)
	r.End(how)
}

// Cancel forgets the span under way: nothing was sent.
func (r *Request) Cancel() {
	if r.span != nil {
		r.span = nil
		r.about.attempts--
	}
}

// End ends the span under way and hands it over; without one it does nothing.
func (r *Request) End(how Result) {
	s := r.span
	if s == nil {
		return
	}
	r.span, s.End = nil, time.Now()
	r.about.last = how.text()
	if how.Status != 0 {
		s.Attrs = append(s.Attrs, spans.Attr{Key: key.HTTPStatus, Number: int64(how.Status)})
	}
	s.Attrs = appendText(s.Attrs, "heddle.reason", string(how.Reason))
	s.Attrs = appendText(s.Attrs, "heddle.policy", how.Policy)
	// OTel semantic conventions, HTTP spans, "Status": a client's 4xx is no error
	// of the server; what a sidecar refused or failed is one to both.
	least := 500
	if s.Kind == spans.Client {
		least = 400
	}
	if s.Failed = how.Status == 0 || how.Status >= least || how.Reason != telemetry.ReasonOK; s.Failed {
		s.Attrs = appendText(s.Attrs, key.ErrorType, how.text())
		s.Detail = string(how.Reason)
	}
	r.tracer.offer(s)
}

// noAnswer is the error.type of what ended without an answer and without a
// fault of ours: the caller has gone.
const noAnswer = "no_answer"
