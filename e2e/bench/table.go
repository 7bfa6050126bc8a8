package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

const haproxyManifest = `
apiVersion: v1
kind: Pod
metadata: {name: haproxy, namespace: plain}
spec:
  nodeSelector: {kubernetes.io/hostname: node1}
  terminationGracePeriodSeconds: 2
  containers: [{name: haproxy, image: haproxy, command: ["HAPROXY", "-f", "CONFIG", "-db"], readinessProbe: {exec: {command: ["/bin/true"]}, periodSeconds: 1}}]
`

// serversManifest has one client and one backend in the mesh and one of each
// outside; the latter's backend has HAProxy beside it.
func serversManifest(haproxy bool) string {
	beside := ""
	if haproxy {
		beside = `
  - {name: haproxy, image: haproxy, command: ["HAPROXY", "-f", "CONFIG", "-db"]}`
	}
	return `
apiVersion: v1
kind: Namespace
metadata: {name: bench, labels: {heddle.dev/inject: enabled}}
---
apiVersion: v1
kind: Namespace
metadata: {name: plain}
---
apiVersion: v1
kind: Service
metadata: {name: server, namespace: bench}
spec: {selector: {app: server}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: server, namespace: bench, labels: {app: server}}
spec:
  nodeSelector: {kubernetes.io/hostname: node2}
  terminationGracePeriodSeconds: 2
  containers: [{name: app, image: bench, command: ["SELF", "backend"]}]
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: bench}
spec:
  nodeSelector: {kubernetes.io/hostname: node1}
  terminationGracePeriodSeconds: 2
  containers: [{name: app, image: bench, command: ["SELF", "backend"]}]
---
apiVersion: v1
kind: Pod
metadata: {name: server, namespace: plain}
spec:
  nodeSelector: {kubernetes.io/hostname: node2}
  terminationGracePeriodSeconds: 2
  containers:
  - {name: app, image: bench, command: ["SELF", "backend"]}` + beside + `
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: plain}
spec:
  nodeSelector: {kubernetes.io/hostname: node1}
  terminationGracePeriodSeconds: 2
  containers: [{name: app, image: bench, command: ["SELF", "backend"]}]
`
}

// cells gives those of one path and load, in order of rounds.
func (r *result) cells(path, load string) (out []cell) {
	for _, c := range r.Cells {
		if c.Path == path && c.Load == load {
			out = append(out, c)
		}
	}
	return out
}

func median[T int | float64 | time.Duration](vs []T) T {
	if len(vs) == 0 {
		return 0
	}
	vs = slices.Clone(vs)
	slices.Sort(vs)
	return vs[len(vs)/2]
}

func each[T any](cs []cell, f func(cell) T) []T {
	out := make([]T, 0, len(cs))
	for _, c := range cs {
		out = append(out, f(c))
	}
	return out
}

// table renders medians over the rounds; ratios are taken in each round, so
// that what else the machine did falls out.
func (r *result) table(raw string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, commit %s. %s, %s CPUs, %s; %s. Raw: [`%s`](bench/%[7]s).\n\n",
		r.Started.Format("2 January 2006"), r.Machine["commit"], r.Machine["kernel"], r.Machine["cpus"], r.Machine["go"], r.Machine["haproxy"], raw)
	b.WriteString("| load | path | requests/s | CPU us/request, proxies | CPU us/request, all | proxies to HAProxy's, per round: median (min-max) | p50 | p99 |\n|---|---|---|---|---|---|---|---|\n")
	for _, load := range loads {
		rival := r.cells("two HAProxy hops", load.name)
		for _, path := range []string{"direct", "two Heddle sidecars", "two HAProxy hops"} {
			cs := r.cells(path, load.name)
			if len(cs) == 0 {
				continue
			}
			ratio := "-"
			if path != "direct" && len(rival) == len(cs) {
				var rs []float64
				for i := range cs {
					rs = append(rs, cs[i].ProxyMicros/rival[i].ProxyMicros)
				}
				ratio = fmt.Sprintf("%.2f (%.2f-%.2f)", median(rs), slices.Min(rs), slices.Max(rs))
			}
			fmt.Fprintf(&b, "| %s | %s | %.0f | %.1f | %.1f | %s | %v | %v |\n", load.name, path,
				median(each(cs, func(c cell) float64 { return float64(c.Result.Requests) / c.Result.Elapsed.Seconds() })),
				median(each(cs, func(c cell) float64 { return c.ProxyMicros })), median(each(cs, func(c cell) float64 { return c.TotalMicros })), ratio,
				median(each(cs, func(c cell) time.Duration { return c.Result.P50 })).Round(time.Microsecond),
				median(each(cs, func(c cell) time.Duration { return c.Result.P99 })).Round(time.Microsecond))
		}
	}
	for _, m := range r.Missing {
		fmt.Fprintf(&b, "\nNot run: %s.\n", m)
	}
	mb := func(n int64) float64 { return float64(n) / 1e6 }
	var pss, anon []float64
	for _, m := range r.Sidecars {
		pss, anon = append(pss, mb(m.PSS)), append(anon, mb(m.Anon))
	}
	fmt.Fprintf(&b, "\n| idle memory | PSS, MB | anonymous, MB |\n|---|---|---|\n")
	if len(pss) > 0 {
		fmt.Fprintf(&b, "| a Heddle sidecar, one of %d on a node: median (max) | %.1f (%.1f) | %.1f (%.1f) |\n", len(pss), median(pss), slices.Max(pss), median(anon), slices.Max(anon))
	}
	if r.HAProxy.PSS > 0 {
		fmt.Fprintf(&b, "| one HAProxy, alone | %.1f | %.1f |\n", mb(r.HAProxy.PSS), mb(r.HAProxy.Anon))
	}
	fmt.Fprintf(&b, "| the control plane, %d sidecars connected | %.1f | %.1f |\n", len(r.Sidecars), mb(r.Control.PSS), mb(r.Control.Anon))
	return b.String()
}

const (
	tableBegin = "<!-- begin: written by make bench -->\n"
	tableEnd   = "<!-- end: written by make bench -->\n"
)

// replaceTable puts the table between the page's two marks.
func replaceTable(file, table string) error {
	page, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(page), tableBegin)
	if !ok {
		return fmt.Errorf("%s has no line %q", file, strings.TrimSpace(tableBegin))
	}
	_, after, ok := strings.Cut(rest, tableEnd)
	if !ok {
		return fmt.Errorf("%s has no line %q", file, strings.TrimSpace(tableEnd))
	}
	return os.WriteFile(file, []byte(before+tableBegin+table+tableEnd+after), 0o644)
}
