package apiserver

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/heddle-mesh/heddle/internal/source"
)

const (
	// eventQueue of events that wait to be written; more are dropped.
	eventQueue = 64
	// eventPause after each, so that trouble everywhere at once does not
	// flood the API server.
	eventPause = 100 * time.Millisecond
	// eventWindow: what is said again within it is counted, not written anew.
	eventWindow = 10 * time.Minute
	// eventMemory bounds what is remembered for counting.
	eventMemory = 512
	// maxNote of an event (core/v1 Event).
	maxNote = 1024
)

// event is one that waits.
type event struct {
	ref             source.Ref
	reason, message string
}

// told is one that was written.
type told struct {
	path  string
	count int
	at    time.Time // first
}

// Event tells people about an object, in the events of its namespace. It never
// waits; what is said again is counted.
func (c *Client) Event(_ context.Context, ref source.Ref, reason, message string) {
	if len(message) > maxNote {
		message = message[:maxNote-3] + "..."
	}
	select {
	case c.events <- event{ref, reason, message}:
	default:
		c.log.Debug("an event is dropped, too many wait", "object", ref.String(), "reason", reason)
	}
}

// WriteEvents writes what Event was told, until ctx ends.
func (c *Client) WriteEvents(ctx context.Context) {
	known := map[event]*told{}
	for {
		select {
		case e := <-c.events:
			if err := c.tell(ctx, known, e); err != nil && ctx.Err() == nil {
				c.log.Warn("cannot write an event", "object", e.ref.String(), "reason", e.reason, "message", e.message, "error", err)
			}
		case <-ctx.Done():
			return
		}
		if !pause(ctx, eventPause) {
			return
		}
	}
}

func (c *Client) tell(ctx context.Context, known map[event]*told, e event) error {
	now := time.Now()
	t := known[e]
	if t != nil && now.Sub(t.at) < eventWindow {
		t.count++
		return c.do(ctx, call{method: http.MethodPatch, path: t.path, form: mergePatch,
			body: map[string]any{"count": t.count, "lastTimestamp": stamp(now)}}, nil)
	}
	namespace := e.ref.Namespace
	if namespace == "" {
		namespace = "default" // where events of cluster-scoped objects live
	}
	name := fmt.Sprintf("%s.%s", e.ref.Name, strings.ToLower(rand.Text()[:16]))
	about := map[string]any{"kind": e.ref.Kind, "namespace": e.ref.Namespace, "name": e.ref.Name}
	if k, ok := Find(e.ref.Kind); ok {
		about["apiVersion"] = k.APIVersion()
		if uid := c.uid(ctx, k, e.ref); uid != "" {
			about["uid"] = uid
		}
	}
	err := c.do(ctx, call{method: http.MethodPost, path: corePath(namespace, "events", ""), body: map[string]any{
		"apiVersion": "v1", "kind": "Event",
		"metadata":       meta{Name: name, Namespace: namespace},
		"involvedObject": about, "reason": e.reason, "message": e.message, "type": "Warning", "count": 1,
		"source":         map[string]any{"component": "heddle"},
		"firstTimestamp": stamp(now), "lastTimestamp": stamp(now),
	}}, nil)
	if err != nil {
		return err
	}
	if len(known) >= eventMemory {
		for k, t := range known {
			if now.Sub(t.at) >= eventWindow || len(known) >= eventMemory {
				delete(known, k)
			}
		}
	}
	known[e] = &told{path: corePath(namespace, "events", name), count: 1, at: now}
	return nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// uid of an object: kubectl describe looks for events by it. It is asked for,
// since few objects ever have an event; empty: not to be had.
func (c *Client) uid(ctx context.Context, k Kind, ref source.Ref) string {
	var o struct {
		Metadata struct {
			UID string `json:"uid"`
		} `json:"metadata"`
	}
	if c.Get(ctx, k.Path(ref.Namespace, ref.Name), &o) != nil {
		return ""
	}
	return o.Metadata.UID
}
