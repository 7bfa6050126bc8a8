package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/heddle-mesh/heddle/internal/source"
)

const (
	// writeTries against others who write the same object; each conflict means
	// that one of them got through.
	writeTries = 5
	// maxMessage of a condition (metav1.Condition).
	maxMessage = 32768
)

// condition is metav1.Condition as the API server has it.
type condition struct {
	Type               string `json:"type"`
	Status             string `json:"status"`
	ObservedGeneration int64  `json:"observedGeneration,omitempty"`
	LastTransitionTime string `json:"lastTransitionTime"`
	Reason             string `json:"reason"`
	Message            string `json:"message"`
}

// WriteStatus replaces the conditions of an object's status by a PATCH of the
// status subresource, if they differ. The time of the last transition stays
// while the status does. ObservedGeneration 0 is the object's of now.
func (c *Client) WriteStatus(ctx context.Context, k Kind, ref source.Ref, conditions []source.Condition) error {
	err := source.ErrConflict
	for try := 0; try < writeTries && errors.Is(err, source.ErrConflict); try++ {
		err = c.writeStatus(ctx, k.Path(ref.Namespace, ref.Name), conditions)
	}
	if err != nil {
		return fmt.Errorf("write status of %s: %w", ref, err)
	}
	return nil
}

func (c *Client) writeStatus(ctx context.Context, path string, conditions []source.Condition) error {
	var o struct {
		Metadata struct {
			Generation      int64  `json:"generation"`
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Status struct {
			Conditions []condition `json:"conditions"`
		} `json:"status"`
	}
	if err := c.Get(ctx, path, &o); err != nil {
		return said(err)
	}
	want := succeed(o.Status.Conditions, conditions, o.Metadata.Generation, time.Now())
	if slices.Equal(want, o.Status.Conditions) {
		return nil
	}
	return said(c.do(ctx, call{method: http.MethodPatch, path: path + "/status", form: mergePatch, body: map[string]any{
		"metadata": map[string]any{"resourceVersion": o.Metadata.ResourceVersion},
		"status":   map[string]any{"conditions": want},
	}}, nil))
}

// succeed makes the conditions that follow old ones.
func succeed(old []condition, now []source.Condition, generation int64, at time.Time) []condition {
	out := make([]condition, 0, len(now))
	for _, n := range now {
		c := condition{Type: n.Type, Status: n.Status, Reason: n.Reason, Message: n.Message,
			ObservedGeneration: n.ObservedGeneration, LastTransitionTime: at.UTC().Format(time.RFC3339)}
		if c.ObservedGeneration == 0 {
			c.ObservedGeneration = generation
		}
		if len(c.Message) > maxMessage {
			c.Message = c.Message[:maxMessage-3] + "..."
		}
		for _, o := range old {
			if o.Type == c.Type && o.Status == c.Status {
				c.LastTransitionTime = o.LastTransitionTime
			}
		}
		out = append(out, c)
	}
	return out
}
