package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// phases keep the time of what a session does.
type phases struct {
	mu   sync.Mutex
	list []phase
}

type phase struct {
	name string
	took time.Duration
}

// begin starts a phase; end it once.
func (p *phases) begin(name string) (end func()) {
	start := time.Now()
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.list = append(p.list, phase{name, time.Since(start)})
	}
}

func (p *phases) print(out io.Writer, whole time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintln(out)
	for _, f := range append(p.list, phase{"in all", whole}) {
		fmt.Fprintf(out, "%8.1fs  %s\n", f.took.Seconds(), f.name)
	}
}
