package driver

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

const (
	getTime = 5 * time.Second
	maxBody = 8 << 20
)

// Get fetches a page over HTTP from a node.
func (l *Lab) Get(ctx context.Context, node string, at netip.AddrPort, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, getTime)
	defer cancel()
	t := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
		return l.Dial(ctx, node, address)
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at.String()+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := t.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("get %s%s from %s: %w", at, path, node, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("get %s%s from %s: %s: %.200s", at, path, node, resp.Status, b)
	}
	return b, err
}

// parseMetrics reads the Prometheus text format, as far as counters, gauges
// and the _count and _sum of histograms go.
func parseMetrics(text string) map[string]float64 {
	out := map[string]float64{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		if at < 0 {
			continue
		}
		v, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			continue
		}
		name, labels, _ := strings.Cut(line[:at], "{")
		labels = strings.TrimSuffix(labels, "}")
		for labels != "" {
			key, rest, ok := strings.Cut(labels, `="`)
			if !ok {
				break
			}
			value, after, ok := strings.Cut(rest, `"`) // our labels hold no quotes
			if !ok {
				break
			}
			name += "," + key + "=" + value
			labels = strings.TrimPrefix(after, ",")
		}
		out[name] = v
	}
	return out
}

// Label finds a label in a key of Metrics.
func Label(key, label string) string {
	for part := range strings.SplitSeq(key, ",") {
		if v, ok := strings.CutPrefix(part, label+"="); ok {
			return v
		}
	}
	return ""
}
