// Package desk stands in front of the HTTP servers of the tests' applications.
// It writes down each request that carries an ID, counts, and fails on demand,
// so that tests can break one replica and ask each what it saw. It knows
// nothing of the mesh and takes part in no retry.
package desk

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/heddle-mesh/heddle/e2e/ledger"
)

// IDField names a request, from whoever made it first to the last service.
const IDField = "X-Request-Id"

// maxDelay bounds how slow a server can be told to be.
const maxDelay = 30 * time.Second

// maxBody of a request that is read before it counts as arrived.
const maxBody = 8 << 20

// Desk wraps handlers. /-/fault and /-/seen are its own.
type Desk struct {
	book  *ledger.Book
	mu    sync.Mutex // guards what follows
	fault fault
	seen  Seen
}

// Seen is what GET /-/seen answers.
type Seen struct {
	Requests int            `json:"requests"` // that arrived, besides /-/ and /healthz
	Failed   int            `json:"failed"`   // of them, by the fault
	Last     time.Time      `json:"last"`     // when the last one arrived
	Statuses map[string]int `json:"statuses,omitempty"`
}

// fault says how requests are to fail.
type fault struct {
	status int           // answer this; 0: do not
	left   int           // so many times; negative: until told otherwise
	delay  time.Duration // before any answer
	abort  bool          // close the connection in place of an answer
}

// New writes into a ledger.
func New(book *ledger.Book) *Desk {
	return &Desk{book: book, seen: Seen{Statuses: map[string]int{}}}
}

// Wrap puts the desk in front of h.
func (d *Desk) Wrap(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/-/fault":
			d.setFault(w, r)
		case r.URL.Path == "/-/seen":
			d.tell(w)
		case r.URL.Path == "/healthz" || strings.HasPrefix(r.URL.Path, "/-/"):
			h.ServeHTTP(w, r)
		default:
			d.serve(w, r, h)
		}
	})
}

func (d *Desk) serve(w http.ResponseWriter, r *http.Request, h http.Handler) {
	if _, err := io.Copy(io.Discard, io.LimitReader(r.Body, maxBody)); err != nil {
		return // never arrived whole
	}
	id := r.Header.Get(IDField)
	f := d.take()
	if id != "" {
		d.book.Write(ledger.Entry{What: ledger.Got, ID: id})
	}
	if f.delay > 0 {
		select {
		case <-time.After(f.delay):
		case <-r.Context().Done():
			return
		}
	}
	if f.abort {
		panic(http.ErrAbortHandler) // net/http closes the connection
	}
	status := f.status
	if status != 0 {
		http.Error(w, "failing on demand", status)
	} else {
		told := &teller{ResponseWriter: w, status: http.StatusOK}
		h.ServeHTTP(told, r)
		status = told.status
	}
	d.mu.Lock()
	d.seen.Statuses[strconv.Itoa(status)]++
	d.mu.Unlock()
	if id != "" {
		d.book.Write(ledger.Entry{What: ledger.Done, ID: id, Status: status})
	}
}

// teller remembers the status.
type teller struct {
	http.ResponseWriter
	status int
}

func (t *teller) WriteHeader(status int) {
	t.status = status
	t.ResponseWriter.WriteHeader(status)
}

// take counts a request and says how it is to fail.
func (d *Desk) take() fault {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seen.Requests++
	d.seen.Last = time.Now()
	f := d.fault
	if f.left == 0 {
		return fault{delay: f.delay}
	}
	if f.left > 0 {
		d.fault.left--
	}
	if f.status != 0 || f.abort {
		d.seen.Failed++
	}
	return f
}

func (d *Desk) setFault(w http.ResponseWriter, r *http.Request) {
	q, f, err := r.URL.Query(), fault{left: -1}, error(nil)
	number := func(key string) int {
		if !q.Has(key) || err != nil {
			return 0
		}
		var n int
		if n, err = strconv.Atoi(q.Get(key)); err != nil {
			err = fmt.Errorf("%s: %w", key, err)
		}
		return n
	}
	f.status, f.abort = number("status"), q.Has("abort")
	if q.Has("n") {
		f.left = number("n")
	}
	if q.Has("delay") && err == nil {
		f.delay, err = time.ParseDuration(q.Get("delay"))
	}
	if err == nil && (f.status != 0 && (f.status < 200 || f.status > 599) || f.delay < 0 || f.delay > maxDelay) {
		err = fmt.Errorf("status wants 200 to 599, delay 0s to %v", maxDelay)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	d.mu.Lock()
	d.fault = f
	d.mu.Unlock()
	fmt.Fprintln(w, "ok")
}

func (d *Desk) tell(w http.ResponseWriter) {
	d.mu.Lock()
	b, err := json.Marshal(d.seen)
	d.mu.Unlock()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Write(append(b, '\n'))
}
