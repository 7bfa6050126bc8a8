package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/heddle-mesh/heddle/e2e/driver"
	"github.com/heddle-mesh/heddle/internal/lab"
)

// change is one writing of a Service's endpoints, and how long it took to be
// in force in each sidecar that uses the Service.
type change struct {
	service string
	at      time.Time
	ready   int // endpoints after it
	took    []time.Duration
}

// watch looks for changes of the shop's EndpointSlices: the file's
// modification time is when the control plane could first have known.
type watch struct {
	lab  *driver.Lab
	seen map[string]time.Time
	all  []change
}

const (
	lookEvery = 5 * time.Millisecond
	// settle is the longest that a change may take to be counted at all.
	settle = 5 * time.Second
)

func newWatch(l *driver.Lab) *watch {
	w := &watch{lab: l, seen: map[string]time.Time{}}
	w.look()
	w.all = nil // what stood at the beginning is no change
	return w
}

func (w *watch) run(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			w.look()
		}
	}
}

func (w *watch) look() {
	files, _ := filepath.Glob(filepath.Join(lab.ObjectsDir("", w.lab.Name), "endpointslice_shop_*.yaml"))
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil || info.ModTime().Equal(w.seen[f]) {
			continue
		}
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		w.seen[f] = info.ModTime()
		text := string(b)
		if !strings.Contains(text, "addressType: IPv4") {
			continue
		}
		_, name, _ := strings.Cut(text, "kubernetes.io/service-name: ")
		name, _, _ = strings.Cut(name, "\n")
		w.all = append(w.all, change{service: name, at: info.ModTime(), ready: strings.Count(text, "ready: true")})
	}
}

// changes joins what was seen with the sidecars' logs: the first line about
// the Service's VIP whose revision is not older than the change. It also gives
// the number of sidecars asked.
func (w *watch) changes(ctx context.Context) ([]change, int) {
	s, err := w.lab.Status()
	if err != nil {
		return w.all, 0
	}
	vips := map[string]string{} // "addr/<ip>" to service
	for _, svc := range s.Services {
		if svc.Namespace == "shop" {
			for _, ip := range svc.ClusterIPs {
				vips["addr/"+ip] = svc.Name
			}
		}
	}
	asked := 0
	for _, p := range s.Pods {
		if p.Namespace != "shop" || !p.Meshed {
			continue
		}
		text, err := w.lab.Logs(ctx, p.Namespace, p.Name, "heddle-sidecar")
		if err != nil {
			continue
		}
		asked++
		w.join(updates(text, vips))
	}
	return w.all, asked
}

// update is a sidecar's log line about a changed destination.
type update struct {
	Time     time.Time `json:"time"`
	Msg      string    `json:"msg"`
	Name     string    `json:"name"`
	Revision int64     `json:"revision"`
	service  string
}

func updates(log []byte, vips map[string]string) []update {
	var out []update
	lines := bufio.NewScanner(bytes.NewReader(log))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var u update
		if json.Unmarshal(lines.Bytes(), &u) == nil && u.Msg == "destination changed" {
			if u.service = vips[u.Name]; u.service != "" {
				out = append(out, u)
			}
		}
	}
	return out
}

func (w *watch) join(us []update) {
	for i := range w.all {
		c := &w.all[i]
		at := slices.IndexFunc(us, func(u update) bool {
			return u.service == c.service && u.Revision >= c.at.UnixNano()
		})
		if at >= 0 {
			if took := us[at].Time.Sub(c.at); took >= 0 && took < settle {
				c.took = append(c.took, took)
			}
		}
	}
}
