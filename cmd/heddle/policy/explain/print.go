package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/source"
)

// add takes judgements; those that say the same, their door and caller apart,
// become one.
func (r *Report) add(list []judgement) {
	for _, j := range list {
		i := slices.IndexFunc(r.Judged, func(o judgement) bool { return o.same(j) })
		if i < 0 {
			r.Judged = append(r.Judged, j)
			continue
		}
		have := &r.Judged[i]
		have.Doors = union(have.Doors, j.Doors)
		have.Callers = union(have.Callers, j.Callers)
	}
}

func union(a, b []string) []string {
	for _, s := range b {
		if !slices.Contains(a, s) {
			a = append(a, s)
		}
	}
	return a
}

// same: another door or address, but the same answer for the same reasons.
func (j judgement) same(o judgement) bool {
	if j.Verdict != o.Verdict || j.Enforced != o.Enforced || j.Reason != o.Reason || j.By != o.By || j.Mode != o.Mode || j.ModeBy != o.ModeBy {
		return false
	}
	return slices.EqualFunc(j.Rules, o.Rules, func(a, b lookedAt) bool {
		return a.Rule == b.Rule && a.Action == b.Action && a.Matches == b.Matches
	})
}

// conclude finds the verdict on all.
func (r *Report) conclude() {
	r.Verdict = r.Judged[0].Verdict
	for _, j := range r.Judged[1:] {
		switch {
		case j.Verdict == r.Verdict:
		case j.Verdict == Allowed || r.Verdict == Allowed || r.Verdict == inPart:
			r.Verdict = inPart
		default:
			r.Verdict = denied
		}
	}
}

// Text is the report for people.
func (r *Report) Text() string {
	var b strings.Builder
	switch r.Verdict {
	case Allowed:
		fmt.Fprintf(&b, "allowed: %s may call %s\n", r.From, r.To)
	case inPart:
		fmt.Fprintf(&b, "allowed in part: %s may call some of %s\n", r.From, r.To)
	default:
		fmt.Fprintf(&b, "refused: %s may not call %s\n", r.From, r.To)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "note: %s\n", n)
	}
	for _, j := range r.Judged {
		j.write(&b, len(r.Judged) > 1)
	}
	for _, t := range r.Traffic {
		t.write(&b)
	}
	return b.String()
}

func (j judgement) write(b *strings.Builder, several bool) {
	fmt.Fprintf(b, "\n%s\n", some(j.Doors))
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	if several && len(j.Callers) > 0 {
		fmt.Fprintf(w, "  from\t%s\n", some(j.Callers))
	}
	fmt.Fprintf(w, "  verdict\t%s\n", j.Verdict)
	if j.Reason != "" {
		fmt.Fprintf(w, "  reason\t%s\n", j.Reason)
	}
	fmt.Fprintf(w, "  by\t%s\n", j.By)
	if j.Enforced {
		fmt.Fprintf(w, "  mode\t%s (%s)\n", j.Mode, j.ModeBy)
	}
	w.Flush() // a strings.Builder takes everything
	if len(j.Rules) == 0 {
		return
	}
	b.WriteString("  rules looked at\n")
	w = tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	for _, l := range j.Rules {
		word := "no match"
		if l.Matches {
			word = "matches"
		}
		fmt.Fprintf(w, "    %s\t%s\t%s\t%s\n", l.Rule, l.Action, word, l.Why)
	}
	w.Flush()
}

// treatment is how callers treat a Service's port.
type treatment struct {
	Service string  `json:"service"`
	Port    uint16  `json:"port"`
	Fields  []field `json:"fields,omitempty"` // empty: no TrafficPolicy says anything
}

// field is one group of a TrafficPolicy that is in force.
type field struct {
	Name string `json:"name"`
	Says string `json:"says"`
	By   string `json:"by"` // the object
	At   string `json:"at,omitempty"`
}

// treatment asks the control plane's own compiler.
func (e *Explainer) treatment(svc *source.Service, sp source.ServicePort) treatment {
	t := treatment{Service: svc.Namespace + "/" + svc.Name, Port: sp.Port}
	p := e.traffic.Policy(source.Key{Namespace: svc.Namespace, Name: svc.Name}, sp.Port)
	for part := range strings.FieldsSeq(p.GetSource()) {
		name, object, _ := strings.Cut(part, "=")
		ns, n, _ := strings.Cut(object, "/")
		ref := source.Ref{Kind: "TrafficPolicy", Namespace: ns, Name: n}
		t.Fields = append(t.Fields, field{Name: name, Says: says(name, p), By: ref.String(), At: e.where[ref]})
	}
	slices.SortFunc(t.Fields, func(a, b field) int { return cmp.Compare(a.Name, b.Name) })
	return t
}

func (t treatment) write(b *strings.Builder) {
	fmt.Fprintf(b, "\nService %s port %d\n", t.Service, t.Port)
	if len(t.Fields) == 0 {
		b.WriteString("  no TrafficPolicy is for it\n")
		return
	}
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	for _, f := range t.Fields {
		at := f.By
		if f.At != "" {
			at += ", " + f.At
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\n", f.Name, f.Says, at)
	}
	w.Flush()
}

// says puts a group, defaults and all, into words.
func says(group string, p *wire.TrafficPolicy) string {
	var out []string
	add := func(ok bool, format string, args ...any) {
		if ok {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	switch group {
	case "retry":
		r := p.GetRetry()
		out = append(out, strings.Replace(count(int(r.GetAttempts()), "retry"), "retrys", "retries", 1))
		var on []string
		on = append(on, r.GetOn()...)
		for _, c := range r.GetStatusCodes() {
			on = append(on, fmt.Sprint(c))
		}
		add(len(on) > 0, "on %s", strings.Join(on, " "))
		add(len(r.GetMethods()) > 0, "of %s", strings.Join(r.GetMethods(), " "))
		add(r.GetPerTryTimeout() != nil, "%s each", span(r.GetPerTryTimeout()))
		add(true, "backoff %s to %s", span(r.GetBackoffBase()), span(r.GetBackoffMax()))
		add(true, "budget %g of the requests and %d a second", r.GetBudgetRatio(), r.GetBudgetMinPerSecond())
		add(true, "bodies to %d bytes", r.GetMaxBodyBytes())
	case "timeouts":
		t := p.GetTimeouts()
		add(t.GetRequest() != nil, "request %s", span(t.GetRequest()))
		add(t.GetConnect() != nil, "connect %s", span(t.GetConnect()))
		add(t.GetIdle() != nil, "idle %s", span(t.GetIdle()))
	case "circuitBreaker":
		c := p.GetCircuitBreaker()
		add(c.GetMaxConnections() > 0, "%d connections", c.GetMaxConnections())
		add(true, "%d pending", c.GetMaxPending())
		add(c.GetMaxRequests() > 0, "%d requests", c.GetMaxRequests())
	case "outlierEjection":
		o := p.GetOutlierEjection()
		add(true, "after %d failures in a row, for %s to %s, at most %d%% of the endpoints", o.GetConsecutiveFailures(),
			span(o.GetBaseEjection()), span(o.GetMaxEjection()), o.GetMaxEjectedPercent())
	}
	return strings.Join(out, ", ")
}

func span(d *wire.Duration) string { return time.Duration(d.GetNanos()).String() }
