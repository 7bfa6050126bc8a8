// Package ledger holds what both ends of a call write down about it, and the
// comparison of the two: no request may be lost, none may be answered by
// nobody, none may be done twice. The load program and the servers of the
// tests write it, the tests read it. It knows nothing of the mesh.
package ledger

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Entry is one line of a ledger.
type Entry struct {
	At   time.Time `json:"at"`
	Who  string    `json:"who"`  // the pod that writes
	What What      `json:"what"` // what happened
	ID   string    `json:"id,omitempty"`
	// Status of the answer; 0: none.
	Status int    `json:"status,omitempty"`
	Reason string `json:"reason,omitempty"` // x-heddle-reason of the answer
	Err    string `json:"err,omitempty"`    // why there was no answer
	By     string `json:"by,omitempty"`     // who answered, as it said itself
	Micros int64  `json:"micros,omitempty"` // from the request's start to its end
	// Count of requests that were begun, in a Bye.
	Count int `json:"count,omitempty"`
}

// What happened.
type What string

// A client writes Begin and then End for each request, and Bye when it has
// ended in order. A server writes Got when a request has arrived whole, and
// Done when its answer was given to the connection.
const (
	Begin What = "begin"
	End   What = "end"
	Bye   What = "bye"
	Got   What = "got"
	Done  What = "done"
)

// Book writes a ledger: a file in a folder, or only the last entries in
// memory.
type Book struct {
	who  string
	mu   sync.Mutex // guards what follows
	file *os.File
	err  error
}

// Open makes the ledger of this pod in a folder; empty: one that keeps
// nothing. Each entry is written at once, so that a killed program's ledger
// has all it did.
func Open(dir string) (*Book, error) {
	who, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	b := &Book{who: who}
	if dir != "" {
		// A container that starts again goes on in the same file.
		if b.file, err = os.OpenFile(filepath.Join(dir, who+".jsonl"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err != nil {
			return nil, fmt.Errorf("open the ledger: %w", err)
		}
	}
	return b, nil
}

// Write adds an entry, with the time and the writer's name.
func (b *Book) Write(e Entry) {
	e.At, e.Who = time.Now(), b.who
	line, err := json.Marshal(e)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.file != nil && err == nil {
		_, err = b.file.Write(append(line, '\n'))
	}
	if err != nil && b.err == nil {
		b.err = err
	}
}

// Close ends the ledger and gives the first error of all its writing.
func (b *Book) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.file == nil {
		return b.err
	}
	if err := b.file.Close(); b.err == nil {
		b.err = err
	}
	return b.err
}

// Read takes in a ledger, or several one after the other. A last line that is
// cut, as a killed program leaves it, is left out.
func Read(r io.Reader) ([]Entry, error) {
	var all []Entry
	br := bufio.NewReader(r)
	for n := 1; ; n++ {
		line, err := br.ReadBytes('\n')
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		var e Entry
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("ledger, line %d: %w", n, err)
		}
		all = append(all, e)
	}
}
