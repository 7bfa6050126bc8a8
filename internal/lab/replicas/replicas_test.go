package replicas

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
)

// pods reads "name:hash:flags" with flags r(eady) t(erminating) f(ailed) s(ucceeded).
func pods(specs ...string) []Pod {
	var out []Pod
	for i, s := range specs {
		f := strings.Split(s, ":")
		out = append(out, Pod{Name: f[0], Hash: f[1], Created: int64(i),
			Ready: strings.Contains(f[2], "r"), Terminating: strings.Contains(f[2], "t"),
			Failed: strings.Contains(f[2], "f"), Succeeded: strings.Contains(f[2], "s")})
	}
	return out
}

func TestDeployment(t *testing.T) {
	recreate := appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
	rolling := func(surge, unavailable string) appsv1.DeploymentStrategy {
		s, u := intstr.Parse(surge), intstr.Parse(unavailable)
		return appsv1.DeploymentStrategy{RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &s, MaxUnavailable: &u}}
	}
	for _, c := range []struct {
		name     string
		want     int32
		strategy appsv1.DeploymentStrategy
		pods     []Pod
		create   int
		remove   []string
	}{
		{name: "from nothing", want: 3, create: 3},
		{name: "a bounded burst", want: 500, create: 50},
		{name: "as it should be", want: 2, pods: pods("a:n:r", "b:n:")},
		{name: "terminating ones are replaced", want: 2, pods: pods("a:n:r", "b:n:rt"), create: 1},
		{name: "failed ones are replaced", want: 1, pods: pods("a:n:f"), create: 1, remove: []string{"a"}},
		{name: "scale down takes the unready, then the young", want: 1, pods: pods("a:n:r", "b:n:r", "c:n:"), remove: []string{"c", "b"}},
		{name: "to nothing", want: 0, pods: pods("a:n:r"), remove: []string{"a"}},
		{name: "roll: one above", want: 2, pods: pods("a:o:r", "b:o:r"), create: 1},
		{name: "roll: wait for ready", want: 2, pods: pods("a:o:r", "b:o:r", "c:n:")},
		{name: "roll: one old goes", want: 2, pods: pods("a:o:r", "b:o:r", "c:n:r"), remove: []string{"b"}},
		{name: "roll: the next", want: 2, pods: pods("a:o:r", "b:o:rt", "c:n:r"), create: 1},
		{name: "roll: unready old ones go at once", want: 2, pods: pods("a:o:", "b:o:r"), create: 1, remove: []string{"a"}},
		{name: "roll: the last", want: 2, pods: pods("a:o:r", "c:n:r", "d:n:r"), remove: []string{"a"}},
		{name: "roll and scale down", want: 1, pods: pods("a:o:r", "b:o:r", "c:o:r"), remove: []string{"c", "b"}},
		{name: "maxUnavailable", want: 4, strategy: rolling("0", "50%"), pods: pods("a:o:r", "b:o:r", "c:o:r", "d:o:r"), remove: []string{"d", "c"}},
		{name: "both zero still moves", want: 1, strategy: rolling("0", "0"), pods: pods("a:o:r"), create: 1},
		{name: "recreate: first empty", want: 2, strategy: recreate, pods: pods("a:o:r", "b:o:r"), remove: []string{"b", "a"}},
		{name: "recreate: wait", want: 2, strategy: recreate, pods: pods("a:o:rt")},
		{name: "recreate: then fill", want: 2, strategy: recreate, create: 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: &c.want, Strategy: c.strategy}}
			got := Deployment(d, "n", c.pods)
			if got.Create != c.create || !slices.Equal(got.Delete, c.remove) {
				t.Errorf("create %d, delete %v; want %d, %v", got.Create, got.Delete, c.create, c.remove)
			}
		})
	}
}

// TestRollEnds drives plans until nothing is left to do and watches the bounds.
func TestRollEnds(t *testing.T) {
	want := int32(3)
	d := &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: &want}}
	now := pods("a:o:r", "b:o:r", "c:o:r")
	for step := range 20 {
		plan := Deployment(d, "n", now)
		if plan.Create == 0 && len(plan.Delete) == 0 {
			if count(now, func(p Pod) bool { return p.Hash == "n" && p.Ready }) != 3 || len(now) != 3 {
				t.Fatalf("came to rest at %v", now)
			}
			return
		}
		now = slices.DeleteFunc(now, func(p Pod) bool { return slices.Contains(plan.Delete, p.Name) })
		if r := count(now, isReady); r < 3 {
			t.Fatalf("step %d: %d ready", step, r)
		}
		for i := range plan.Create {
			now = append(now, Pod{Name: string(rune('A'+step)) + string(rune('0'+i)), Hash: "n", Created: int64(step)})
		}
		if len(now) > 4 {
			t.Fatalf("step %d: %d pods", step, len(now))
		}
		for i := range now {
			now[i].Ready = true
		}
	}
	t.Fatal("does not end")
}

func TestJob(t *testing.T) {
	job := func(completions, parallelism, limit int32) *batchv1.Job {
		return &batchv1.Job{Spec: batchv1.JobSpec{Completions: &completions, Parallelism: &parallelism, BackoffLimit: &limit}}
	}
	for _, c := range []struct {
		name         string
		job          *batchv1.Job
		pods         []Pod
		create       int
		done, failed bool
	}{
		{"start", job(3, 2, 0), nil, 2, false, false},
		{"one at a time", job(1, 1, 0), pods("a::"), 0, false, false},
		{"the rest", job(3, 2, 0), pods("a::s", "b::s"), 1, false, false},
		{"done", job(1, 1, 0), pods("a::s"), 0, true, false},
		{"try again", job(1, 1, 1), pods("a::f"), 1, false, false},
		{"give up", job(1, 1, 1), pods("a::f", "b::f"), 0, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			plan, done, failed := Job(c.job, c.pods)
			if plan.Create != c.create || done != c.done || failed != c.failed || len(plan.Delete) > 0 {
				t.Errorf("got %+v %v %v", plan, done, failed)
			}
		})
	}
}

func TestNamesFit(t *testing.T) {
	for _, base := range []string{"web-abc", strings.Repeat("a", 253), strings.Repeat("a", 57) + "-b", "dot.", strings.Repeat("x.", 60)} {
		name := Name(base, func(string) bool { return false })
		if len(name) > 63 || len(validation.IsDNS1123Subdomain(name)) > 0 {
			t.Errorf("%q of base %q is not a pod's name", name, base)
		}
	}
	n := 0
	name := Name("web", func(string) bool { n++; return n < 3 })
	if n != 3 || !strings.HasPrefix(name, "web-") || len(name) != len("web-")+5 {
		t.Errorf("got %q after %d tries", name, n)
	}
}

func TestHashFollowsTheTemplate(t *testing.T) {
	a := &corev1.PodTemplateSpec{Spec: corev1.PodSpec{Hostname: "a"}}
	b := &corev1.PodTemplateSpec{Spec: corev1.PodSpec{Hostname: "b"}}
	if Hash(a) != Hash(a.DeepCopy()) || Hash(a) == Hash(b) {
		t.Error("the hash does not follow the template")
	}
	if len(validation.IsValidLabelValue(Hash(a))) > 0 {
		t.Errorf("%q is not a label's value", Hash(a))
	}
}
