package status

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
	"github.com/heddle-mesh/heddle/internal/source"
	"github.com/heddle-mesh/heddle/internal/source/manifest"
)

// snapshot reads manifests as the files door does.
func snapshot(text string) (*source.Snapshot, []source.Problem) {
	x := manifest.Read("f", []byte(text))
	s := &source.Snapshot{Pods: map[source.Key]*source.Pod{}, Services: map[source.Key]*source.Service{},
		AccessPolicies: map[source.Key]*v1alpha1.AccessPolicy{}, TrafficPolicies: map[source.Key]*v1alpha1.TrafficPolicy{}, BrokenPolicies: x.Broken}
	for _, o := range x.Objects {
		key := source.Key{Namespace: o.Ref.Namespace, Name: o.Ref.Name}
		switch v := o.Value.(type) {
		case *source.Pod:
			s.Pods[key] = v
		case *source.Service:
			s.Services[key] = v
		case *v1alpha1.MeshConfig:
			s.Mesh = v
		case *v1alpha1.AccessPolicy:
			s.AccessPolicies[key] = v
		case *v1alpha1.TrafficPolicy:
			s.TrafficPolicies[key] = v
		}
	}
	return s, x.Problems
}

const world = `
apiVersion: heddle.dev/v1alpha1
kind: MeshConfig
metadata: {name: default}
spec: {mtls: strict}
---
apiVersion: heddle.dev/v1alpha1
kind: AccessPolicy
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, mtls: {mode: strict}}
---
apiVersion: heddle.dev/v1alpha1
kind: AccessPolicy
metadata: {name: all, namespace: shop}
spec: {mtls: {mode: strict}}
---
apiVersion: heddle.dev/v1alpha1
kind: AccessPolicy
metadata: {name: nobody, namespace: shop}
spec: {selector: {app: nobody}, mtls: {mode: strict}}
---
apiVersion: heddle.dev/v1alpha1
kind: AccessPolicy
metadata: {name: typo, namespace: shop}
spec: {selector: {app: web}, rules: [{action: alow}]}
---
apiVersion: heddle.dev/v1alpha1
kind: TrafficPolicy
metadata: {name: web, namespace: shop}
spec: {targetRefs: [{name: web}, {name: web, port: 80}, {name: web, port: 81}, {name: absent}], timeouts: {request: 2s}}
---
apiVersion: heddle.dev/v1alpha1
kind: TrafficPolicy
metadata: {name: typo, namespace: shop}
spec: {targetRefs: [{nam: web, name: web}], timeouts: {request: 2s}}
---
apiVersion: heddle.dev/v1alpha1
kind: MeshConfig
metadata: {name: other}
spec: {mtls: strict}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {ports: [{port: 80}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: shop, labels: {app: web}, annotations: {heddle.dev/status: "{}"}}
---
apiVersion: v1
kind: Pod
metadata: {name: web-2, namespace: shop, labels: {app: web}}
---
apiVersion: v1
kind: Pod
metadata: {name: done, namespace: shop, labels: {app: web}}
status: {phase: Succeeded}
`

func TestOf(t *testing.T) {
	var got []string
	snap, problems := snapshot(world)
	for ref, v := range Of(snap, problems) {
		if v.ObservedGeneration == 0 || v.Type != Accepted {
			t.Errorf("%s: %+v", ref, v)
		}
		got = append(got, fmt.Sprintf("%s: %s %s: %s", ref, v.Status, v.Reason, v.Message))
	}
	slices.Sort(got)
	want := `AccessPolicy shop/all: True Accepted: in force; selects 2 pods, 1 of them without a sidecar that would enforce it
AccessPolicy shop/nobody: True Accepted: in force; selects no pod yet
AccessPolicy shop/typo: False Invalid: spec.rules[0].action: "alow" is no action (say allow, deny or audit); until then nobody may call the 2 pods that it may mean
AccessPolicy shop/web: True Accepted: in force; selects 2 pods, 1 of them without a sidecar that would enforce it
MeshConfig default: True Accepted: in force
MeshConfig other: False Invalid: metadata.name: "other" does not count (only the one named default does); until then it is not in force
TrafficPolicy shop/typo: False Invalid: spec.targetRefs[0].nam: no such field (correct its name, or take it out); until then it is not in force
TrafficPolicy shop/web: True Accepted: in force; is for 1 Service; Service shop/web has no port 81; there is no Service shop/absent`
	if s := strings.Join(got, "\n"); s != want {
		t.Errorf("got\n%s\nwant\n%s", s, want)
	}
}

// A version that is not understood is judged under its own generation, though
// the last good one is in force.
func TestOfLastGood(t *testing.T) {
	snap, _ := snapshot(world)
	ref := source.Ref{Kind: "TrafficPolicy", Namespace: "shop", Name: "web"}
	v := Of(snap, []source.Problem{{Ref: ref, Err: "bad", Generation: 77}})[ref]
	if v.ObservedGeneration != 77 || v.Status != "False" || !strings.HasSuffix(v.Message, "its last good version is in force") {
		t.Errorf("%+v", v)
	}
}

// book takes writes.
type book struct {
	mu   sync.Mutex
	rows []string
	fail error
}

func (b *book) write(_ context.Context, ref source.Ref, list []source.Condition) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail != nil {
		return b.fail
	}
	b.rows = append(b.rows, ref.String()+" "+list[0].Status+" "+cmp.Or(strings.TrimPrefix(list[0].Message, "in force; "), "-"))
	return nil
}

func (b *book) take() string {
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	s := strings.Join(b.rows, "\n")
	b.rows = nil
	return s
}

const one = `
apiVersion: heddle.dev/v1alpha1
kind: AccessPolicy
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, mtls: {mode: strict}}
`

const pod = `
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: shop, labels: {app: web}, annotations: {heddle.dev/status: "{}"}}
`

// Only what changed is written: a verdict at once, numbers now and then, a
// failed write again; a new leader writes everything.
func TestWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		b := &book{}
		w := New(b.write, nil)
		go w.Run(ctx)
		update := func(text string) { w.Update(snapshot(text)) }
		want := func(step, rows string) {
			t.Helper()
			if got := b.take(); got != rows {
				t.Fatalf("%s: wrote\n%s\nwant\n%s", step, got, rows)
			}
		}
		want("before any world", "")
		update(one)
		time.Sleep(gather)
		want("first", "AccessPolicy shop/web True selects no pod yet")
		update(one)
		time.Sleep(time.Minute)
		want("nothing changed", "")
		update(one + pod)
		want("first number after long", "AccessPolicy shop/web True selects 1 pod")
		update(one)
		time.Sleep(time.Second)
		want("a number again, at once", "")
		time.Sleep(countEvery)
		want("a number again, later", "AccessPolicy shop/web True selects no pod yet")
		update(strings.Replace(one, "strict", "permissive", 1))
		time.Sleep(gather)
		want("another generation, at once", "AccessPolicy shop/web True selects no pod yet")
		update(strings.Replace(one, "strict", "stric", 1) + pod)
		time.Sleep(gather)
		want("a mistake, at once", `AccessPolicy shop/web False spec.mtls.mode: "stric" is no mode (say permissive or strict); until then nobody may call the 1 pod that it may mean`)
		b.mu.Lock()
		b.fail = errors.New("away")
		b.mu.Unlock()
		update(one)
		time.Sleep(retry / 2)
		b.mu.Lock()
		b.fail = nil
		b.mu.Unlock()
		want("a failed write", "")
		time.Sleep(retry)
		want("written again", "AccessPolicy shop/web True selects no pod yet")
		update("")
		time.Sleep(gather)
		update(one)
		time.Sleep(gather)
		want("came back", "AccessPolicy shop/web True selects no pod yet")
		cancel()
		synctest.Wait()
		ctx, cancel = context.WithCancel(t.Context())
		go w.Run(ctx)
		time.Sleep(gather)
		want("a new leader", "AccessPolicy shop/web True selects no pod yet")
		cancel()
	})
}
