package cluster

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
	"github.com/heddle-mesh/heddle/internal/lab/admit"
	"github.com/heddle-mesh/heddle/internal/lab/manifest"
)

var update = flag.Bool("update", false, "write what the scenarios give into their golden files")

// TestScenarios runs testdata/*.txt: manifests and events in, actions and
// objects out. A line "> command" is one of
//
//	> manifests      what follows, up to the next command, replaces the manifests
//	> run            kubelets start what they have and end what they shall end
//	> start          the same, but what shall end goes on
//	> unready POD    a pod's probe fails
//	> fail POD       a pod ends in failure
//	> admit          webhooks say yes and mark the pod; with a word: no
//	> warn WORDS     webhooks say yes, with a warning, and do not mark the pod
//	> tick DURATION  time passes
//	> drain          the lab ends
//	> show KIND NAME prints an object
//
// After each, the lab takes a step and prints what it asks for.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scenarios", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			in, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s := newScenario(t)
			for _, part := range strings.Split("\n"+string(in), "\n> ")[1:] {
				command, body, _ := strings.Cut(part, "\n")
				s.do(command, body)
			}
			golden := strings.TrimSuffix(file, ".txt") + ".golden"
			if *update {
				if err := os.WriteFile(golden, []byte(s.out.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), s.out.String()); diff != "" {
				t.Errorf("want - got +\n%s", diff)
			}
		})
	}
}

type scenario struct {
	t       *testing.T
	c       *Cluster
	now     time.Time
	uids    int
	running map[types.UID]*corev1.Pod // what kubelets have
	ending  map[types.UID]bool
	asked   []Admission
	last    Output
	out     strings.Builder
}

func newScenario(t *testing.T) *scenario {
	s := &scenario{t: t, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), running: map[types.UID]*corev1.Pod{}, ending: map[types.UID]bool{}}
	node := func(number byte, zone string) Node {
		return Node{Name: fmt.Sprintf("node%d", number), Zone: zone, Labels: map[string]string{"disk": zone},
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{172, 30, 0, number})},
			PodCIDRs:  []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, number, 0}), 24), netip.MustParsePrefix(fmt.Sprintf("fd00:10:244:%d::/64", number))}}
	}
	s.c = New(Config{
		Domain: "cluster.local", Nodes: []Node{node(1, "a"), node(2, "b")},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:10:96::/112")},
		NewUID: func() types.UID {
			s.uids++
			return types.UID(fmt.Sprintf("uid-%d", s.uids))
		},
		NewName: func(base string, taken func(string) bool) string {
			for i := 1; ; i++ {
				if name := fmt.Sprintf("%s-%d", base, i); !taken(name) {
					return name
				}
			}
		},
		Now: func() time.Time { return s.now },
	})
	return s
}

func (s *scenario) do(command, body string) {
	fmt.Fprintf(&s.out, "> %s\n", command)
	f := strings.Fields(command)
	switch f[0] {
	case "manifests":
		docs, problems := manifest.Parse("in.yaml", []byte(body))
		s.c.SetManifests(&manifest.Set{Documents: docs, Problems: problems})
	case "run", "start":
		s.kubelets(f[0] == "run")
	case "unready", "fail":
		s.disturb(f[0], f[1])
	case "admit":
		s.admit(f[1:])
	case "warn":
		for _, a := range s.asked {
			s.c.Admitted(a.Pod.UID, Answer{Pod: a.Pod, Warnings: []string{strings.Join(f[1:], " ")}})
		}
		s.asked = nil
	case "tick":
		d, err := time.ParseDuration(f[1])
		if err != nil {
			s.t.Fatal(err)
		}
		s.now = s.now.Add(d)
	case "drain":
		s.c.Drain("heddle-system", time.Second)
	case "show":
		s.show(f[1], f[2])
		return
	default:
		s.t.Fatalf("unknown command %q", command)
	}
	s.step()
}

// kubelets lets every pod run and be ready, and what shall end be gone.
func (s *scenario) kubelets(end bool) {
	for uid, p := range s.running {
		if s.ending[uid] && end {
			delete(s.running, uid)
			s.c.PodDeleted(uid)
			continue
		}
		q := p.DeepCopy()
		q.Status.Phase = corev1.PodRunning
		q.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		for _, c := range q.Spec.Containers {
			q.Status.ContainerStatuses = append(q.Status.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, Ready: true})
		}
		s.c.PodStatus(q)
	}
}

func (s *scenario) disturb(how, name string) {
	for _, p := range s.running {
		if p.Name != name {
			continue
		}
		q := p.DeepCopy()
		q.Status.Phase = corev1.PodRunning
		if how == "fail" {
			q.Status.Phase = corev1.PodFailed
		}
		q.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
		s.c.PodStatus(q)
		return
	}
	s.t.Fatalf("no kubelet has pod %s: %s", name, s.out.String())
}

func (s *scenario) admit(words []string) {
	asked := s.asked
	s.asked = nil
	for _, a := range asked {
		if len(words) > 0 {
			s.c.Admitted(a.Pod.UID, Answer{Err: fmt.Errorf("%w: %s", admit.ErrRefused, strings.Join(words, " "))})
			continue
		}
		if a.Pod.Annotations == nil {
			a.Pod.Annotations = map[string]string{}
		}
		a.Pod.Annotations[v1alpha1.StatusKey] = "{}"
		s.c.Admitted(a.Pod.UID, Answer{Pod: a.Pod})
	}
}

func (s *scenario) step() {
	out := s.c.Step()
	s.last = out
	for _, p := range out.Apply {
		s.running[p.UID] = p
		fmt.Fprintf(&s.out, "apply %s to %s\n", p.Name, p.Spec.NodeName)
	}
	for _, d := range out.Delete {
		s.ending[d.UID] = true
		fmt.Fprintf(&s.out, "delete %s of %s, grace %v\n", s.running[d.UID].Name, d.Node, d.Grace)
	}
	for _, a := range out.Admit {
		s.asked = append(s.asked, a)
		for _, h := range a.Hooks {
			fmt.Fprintf(&s.out, "ask %s about %s\n", h.Name, a.Pod.Name)
		}
	}
	if !out.Wake.IsZero() {
		fmt.Fprintf(&s.out, "wake in %v\n", out.Wake.Sub(s.now))
	}
	for _, p := range out.Status.Pods {
		fmt.Fprintf(&s.out, "  pod %s/%s %s", p.Namespace, p.Name, p.Phase)
		for _, x := range []struct {
			is   bool
			what string
		}{{p.Ready, "ready"}, {p.Meshed, "meshed"}, {p.Terminating, "terminating"}} {
			if x.is {
				fmt.Fprintf(&s.out, " %s", x.what)
			}
		}
		fmt.Fprintf(&s.out, " %s\n", strings.TrimSpace(strings.Join(p.IPs, " ")+" "+p.Message))
	}
	for _, v := range out.Status.Services {
		fmt.Fprintf(&s.out, "  service %s/%s %s %v %d of %d\n", v.Namespace, v.Name, v.Type, v.ClusterIPs, v.Ready, v.Total)
	}
	for _, p := range out.Status.Problems {
		fmt.Fprintf(&s.out, "  problem %s\n", p)
	}
}

func (s *scenario) show(kind, name string) {
	for _, o := range s.last.Objects {
		if o.Ref.Kind == kind && o.Ref.Name == name {
			b, err := yaml.Marshal(o.Value)
			if err != nil {
				s.t.Fatal(err)
			}
			s.out.Write(b)
			return
		}
	}
	fmt.Fprintf(&s.out, "there is no %s %s\n", kind, name)
}
