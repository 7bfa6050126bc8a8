package codec

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
)

// sample is what a client and an endpoint say in a case of http1's corpus.
type sample struct{ client, answer string }

func corpus(t testing.TB) (all []sample) {
	t.Helper()
	text, err := os.ReadFile("../testdata/requests.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		value, err := strconv.Unquote(strings.TrimSuffix(value, " close"))
		switch {
		case key == "C" && err == nil:
			all = append(all, sample{client: value})
		case key == "S" && err == nil:
			all = append(all, sample{answer: value})
		}
	}
	if len(all) == 0 {
		t.Fatal("no seeds")
	}
	return all
}

// whole parses b as one head, and again byte by byte: the outcome must be the
// same.
func whole(t *testing.T, b []byte, parse func(h *Head, b []byte) (bool, error)) (*Head, bool) {
	t.Helper()
	h, slow := &Head{}, &Head{}
	h.Reset()
	slow.Reset()
	done, err := parse(h, b)
	var slowDone bool
	var slowErr error
	for n := 1; n <= len(b) && !slowDone && slowErr == nil; n++ {
		slowDone, slowErr = parse(slow, b[:n])
	}
	if done != slowDone || (err == nil) != (slowErr == nil) {
		t.Fatalf("%q: at once %v %v, in pieces %v %v", b, done, err, slowDone, slowErr)
	}
	if done && (h.Len() != slow.Len() || len(h.fields) != len(slow.fields) || h.length != slow.length || h.chunked != slow.chunked) {
		t.Fatalf("%q: read differently in pieces", b)
	}
	return h, done && err == nil
}

func FuzzRequestHead(f *testing.F) {
	for _, s := range corpus(f) {
		f.Add([]byte(s.client))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, ok := whole(t, b, (*Head).ParseRequest)
		if !ok {
			return
		}
		// What we take, net/http must read in the same way, or refuse.
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(b[h.start:])))
		if err == nil {
			if r.Method != string(h.Method()) || r.RequestURI != string(h.Target()) || r.ProtoMinor != h.Minor {
				t.Fatalf("%q: net/http reads %s %s", b, r.Method, r.RequestURI)
			}
			chunkedThere := len(r.TransferEncoding) > 0
			if chunkedThere != h.chunked || !h.chunked && r.ContentLength != max(h.length, 0) {
				t.Fatalf("%q: net/http frames it as %v %d, we as %v %d", b, r.TransferEncoding, r.ContentLength, h.chunked, h.length)
			}
		}
		// What we pass on is a head again, with the same framing.
		out := append(h.AppendTo(nil, &Edit{Client: []byte("1.2.3.4"), NoHeddle: true, Extra: []byte("X-Extra: y\r\n")}), "\r\n"...)
		again := &Head{}
		again.Reset()
		if done, err := again.ParseRequest(out); !done || err != nil || again.Len() != len(out) {
			if err != TooLarge && err != faultTooMany { // what we add may be too much
				t.Fatalf("%q becomes %q: %v %v", b, out, done, err)
			}
			return
		}
		if again.length != h.length || again.chunked != h.chunked || string(again.Target()) != string(h.Target()) {
			t.Fatalf("%q becomes %q with another meaning", b, out)
		}
	})
}

func FuzzResponseHead(f *testing.F) {
	for _, s := range corpus(f) {
		f.Add([]byte(s.answer))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, ok := whole(t, b, (*Head).ParseResponse)
		if !ok || h.Bodiless() {
			return
		}
		r, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(b)), nil)
		if err != nil {
			return
		}
		length := r.ContentLength
		if r.StatusCode != h.Status || (len(r.TransferEncoding) > 0) != h.chunked || !h.chunked && length != h.length {
			t.Fatalf("%q: net/http reads %d %v %d, we %d %v %d", b, r.StatusCode, r.TransferEncoding, length, h.Status, h.chunked, h.length)
		}
	})
}

func FuzzChunked(f *testing.F) {
	for _, s := range corpus(f) {
		if _, body, ok := strings.Cut(s.client, "chunked\r\n\r\n"); ok {
			f.Add([]byte(body))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		fast, slow := Body{framing: chunked}, Body{framing: chunked}
		n, err := fast.Take(b)
		m := 0
		var slowErr error
		for m < len(b) && !slow.Done() && slowErr == nil {
			var k int
			k, slowErr = slow.Take(b[m : m+1])
			m += k
		}
		if n != m || (err == nil) != (slowErr == nil) || fast.Done() != slow.Done() {
			t.Fatalf("%q: at once %d %v %v, in pieces %d %v %v", b, n, err, fast.Done(), m, slowErr, slow.Done())
		}
		if !fast.Done() {
			return
		}
		// What we take whole, net/http reads to the same end.
		r := bufio.NewReader(io.MultiReader(strings.NewReader("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"), bytes.NewReader(b)))
		req, err := http.ReadRequest(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return // it may be stricter
		}
		left, _ := io.ReadAll(r)
		if len(left) != len(b)-n {
			t.Fatalf("%q: we end at %d, net/http at %d", b, n, len(b)-len(left))
		}
	})
}
