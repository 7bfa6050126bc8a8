package ledger

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Verdict compares the two ends.
type Verdict struct {
	Begun    int // requests that clients began
	Good     int // answered by 2xx
	Clients  []string
	Servers  []string // those that got a request
	Took     time.Duration
	problems []string
	more     int
}

// maxTold bounds the problems that are told one by one.
const maxTold = 12

// fate is all that is known about one request.
type fate struct {
	begun, ended bool
	end          Entry
	got, done    []string // servers, one for each time
}

// Compare judges the entries of all clients and servers.
func Compare(entries []Entry) *Verdict {
	v := &Verdict{}
	all := map[string]*fate{}
	of := func(e Entry) *fate {
		if all[e.ID] == nil {
			all[e.ID] = &fate{}
		}
		return all[e.ID]
	}
	begun, bye, servers := map[string]int{}, map[string]int{}, map[string]bool{}
	var first, last time.Time
	for _, e := range entries {
		switch e.What {
		case Begin:
			of(e).begun = true
			begun[e.Who]++
			if first.IsZero() || e.At.Before(first) {
				first = e.At
			}
			if e.At.After(last) {
				last = e.At
			}
		case End:
			f := of(e)
			if f.ended {
				v.tell("%s ended twice", e.ID)
			}
			f.ended, f.end = true, e
		case Bye:
			bye[e.Who] += e.Count
		case Got:
			of(e).got = append(of(e).got, e.Who)
			servers[e.Who] = true
		case Done:
			of(e).done = append(of(e).done, e.Who)
		default:
			v.tell("%s wrote %q, which is nothing", e.Who, e.What)
		}
	}
	for _, who := range slices.Sorted(maps.Keys(begun)) {
		if n, ok := bye[who]; !ok || n != begun[who] {
			v.tell("client %s did not end in order: it began %d requests and took leave after %d", who, begun[who], n)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(all)) {
		v.judge(id, all[id])
	}
	v.Clients, v.Servers, v.Took = slices.Sorted(maps.Keys(begun)), slices.Sorted(maps.Keys(servers)), last.Sub(first)
	return v
}

func (v *Verdict) judge(id string, f *fate) {
	if f.begun {
		v.Begun++
	}
	switch {
	case !f.begun:
		v.tell("%s was served by %v but no client began it", id, f.got)
	case !f.ended:
		v.tell("%s is lost: begun, and no end is known; servers that got it: %v", id, f.got)
	case f.end.Status/100 != 2:
		v.tell("%s failed at %s: status %d %s %s; servers that got it: %v", id, f.end.At.Format("15:04:05.000"), f.end.Status, f.end.Reason, f.end.Err, f.got)
	case len(f.got) == 0:
		v.tell("%s was answered by %q, which no server wrote down", id, f.end.By)
	case len(f.got) > 1:
		v.tell("%s was done %d times, by %v", id, len(f.got), f.got)
	case len(f.done) != 1 || f.got[0] != f.end.By || f.done[0] != f.end.By:
		v.tell("%s was answered by %q, but got by %v and done by %v", id, f.end.By, f.got, f.done)
	default:
		v.Good++
	}
}

func (v *Verdict) tell(format string, args ...any) {
	if len(v.problems) == maxTold {
		v.more++
		return
	}
	v.problems = append(v.problems, fmt.Sprintf(format, args...))
}

// Err is nil if nothing was lost: every request that a client began was
// answered by 2xx, by the server that says it did it, once.
func (v *Verdict) Err() error {
	if v.Begun == 0 {
		return errors.New("no request was begun: nothing is proven")
	}
	var errs []error
	for _, p := range v.problems {
		errs = append(errs, errors.New(p))
	}
	if v.more > 0 {
		errs = append(errs, fmt.Errorf("and %d more", v.more))
	}
	return errors.Join(errs...)
}
