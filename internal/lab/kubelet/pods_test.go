package kubelet

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/heddle-mesh/heddle/internal/lab/fabric"
	"github.com/heddle-mesh/heddle/internal/lab/kubelet/container"
	"github.com/heddle-mesh/heddle/internal/meshtest"
)

// The test binary is also the pods' programs, and a kubelet to be killed:
// HEDDLE_TEST says which.
func TestMain(m *testing.M) {
	MaybeShim()
	switch os.Getenv("HEDDLE_TEST") {
	case "":
		os.Exit(m.Run())
	case "web":
		serveWeb()
	case "stamp": // says when it starts and ends
		stamp("start")
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM)
		<-c
		stamp("end")
	case "once":
		stamp("once")
	case "eat": // memory, more than it may
		var all [][]byte
		for range 256 {
			b := make([]byte, 1<<20)
			for i := range b {
				b[i] = 1
			}
			all = append(all, b)
		}
		fmt.Println("ate it all", len(all))
		os.Exit(5)
	case "crash":
		fmt.Println("about to crash")
		os.Exit(4)
	case "kubelet":
		runKubelet(os.Args[1], os.Args[2])
	}
}

// stamp adds a line to the file that all containers of the pod share.
func stamp(what string) {
	f, err := os.OpenFile("/shared/stamps", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Fprintf(f, "%s %s\n", what, os.Getenv("NAME"))
	f.Close()
}

// serveWeb shows what it sees: files, its environment, who asked.
func serveWeb() {
	var mu sync.Mutex
	var probes []string
	http.HandleFunc("/file", func(w http.ResponseWriter, r *http.Request) {
		b, err := os.ReadFile(r.URL.Query().Get("path"))
		if err != nil {
			http.Error(w, err.Error(), 500)
			return
		}
		_, _ = w.Write(b)
	})
	http.HandleFunc("/env", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(append(os.Environ(), os.Args...))
	})
	http.HandleFunc("/ready", func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		probes = append(probes, host)
		if _, err := os.Stat("/shared/unready"); err == nil {
			w.WriteHeader(503)
		}
	})
	http.HandleFunc("/probes", func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprint(w, strings.Join(probes, " "))
	})
	fmt.Println("serving")
	fmt.Println(http.ListenAndServe(":8080", nil))
	os.Exit(1)
}

// town is a lab of one or two nodes with kubelets.
type town struct {
	t       *testing.T
	fab     *fabric.Fabric
	state   string
	program string
	kubelet map[string]*Kubelet
	client  *http.Client

	mu      sync.Mutex
	pods    map[types.UID]*corev1.Pod
	deleted map[types.UID]bool
	changed chan struct{}
}

func network(run, lab string) fabric.Config {
	addr, prefix := netip.MustParseAddr, netip.MustParsePrefix
	return fabric.Config{Lab: lab, RunDir: run,
		Backbone: []netip.Prefix{prefix("192.168.78.0/24"), prefix("fd78::/64")},
		Nodes: []fabric.Node{
			{Name: "n1", Addresses: []netip.Addr{addr("192.168.78.1"), addr("fd78::1")},
				PodCIDRs: []netip.Prefix{prefix("10.78.1.0/24"), prefix("fd78:1::/64")}},
			{Name: "n2", Addresses: []netip.Addr{addr("192.168.78.2"), addr("fd78::2")},
				PodCIDRs: []netip.Prefix{prefix("10.78.2.0/24"), prefix("fd78:2::/64")}},
		}}
}

func newTown(t *testing.T) *town {
	t.Helper()
	meshtest.RequireRoot(t)
	run := t.TempDir()
	fab, err := fabric.Up(network(run, "town"))
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	w := &town{t: t, fab: fab, state: t.TempDir(), program: program, kubelet: map[string]*Kubelet{},
		pods: map[types.UID]*corev1.Pod{}, deleted: map[types.UID]bool{}, changed: make(chan struct{}, 1)}
	w.client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return fabric.Dial(ctx, fab.NodeNetNS("n2"), network, address)
		}}}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, node := range []string{"n1", "n2"} {
		k := New(w.config(node))
		w.kubelet[node] = k
		wg.Go(func() {
			if err := k.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		if err := fabric.Down(run, "town"); err != nil {
			t.Error(err)
		}
		if es, err := os.ReadDir(podsDir(w.state)); err != nil || len(es) != 0 {
			t.Errorf("pods' folders are left: %v, %v", es, err)
		}
	})
	return w
}

func (w *town) config(node string) Config {
	tokens := 0
	return Config{
		Fabric: w.fab, Node: node, StateDir: w.state, ClusterDomain: "cluster.local",
		Nameservers: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		Token: func(_ context.Context, r TokenRequest) (string, time.Time, error) {
			tokens++
			return fmt.Sprintf("%d %s %s %s %s %s", tokens, r.Namespace, r.ServiceAccount, r.PodUID, r.Audience, r.Node),
				time.Now().Add(r.Expiry), nil
		},
		OnStatus: func(p *corev1.Pod) { w.note(func() { w.pods[p.UID] = p }) },
		OnDeleted: func(p *corev1.Pod) {
			w.note(func() { w.pods[p.UID] = p; w.deleted[p.UID] = true })
		},
		BackOff: 200 * time.Millisecond,
	}
}

func (w *town) note(change func()) {
	w.mu.Lock()
	change()
	w.mu.Unlock()
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// await waits until a pod's status is as wanted.
func (w *town) await(uid types.UID, what string, is func(*corev1.Pod) bool) *corev1.Pod {
	w.t.Helper()
	timeout := time.After(20 * time.Second)
	for {
		w.mu.Lock()
		p := w.pods[uid]
		w.mu.Unlock()
		if p != nil && is(p) {
			return p
		}
		select {
		case <-w.changed:
		case <-timeout:
			raw, _ := json.MarshalIndent(p, "", " ")
			w.t.Fatalf("pod %s never became %s: %s", uid, what, raw)
		}
	}
}

func isReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func (w *town) awaitDeleted(uid types.UID) {
	w.t.Helper()
	w.await(uid, "deleted", func(*corev1.Pod) bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.deleted[uid]
	})
}

func (w *town) get(url string) string {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	resp, err := w.client.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return string(b)
}

func (w *town) pod(name string, ips ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name),
		Labels: map[string]string{"app": name}, Annotations: map[string]string{"heddle.dev/a": "b"}},
		Spec: corev1.PodSpec{NodeName: "n1", ServiceAccountName: "robot", RestartPolicy: corev1.RestartPolicyAlways,
			Volumes: []corev1.Volume{{Name: "shared", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}}}
	for _, ip := range ips {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	return p
}

func (w *town) container(name, job string) corev1.Container {
	return corev1.Container{Name: name, Image: "ignored:1", Command: []string{w.program},
		Env:          []corev1.EnvVar{{Name: "HEDDLE_TEST", Value: job}, {Name: "NAME", Value: name}},
		VolumeMounts: []corev1.VolumeMount{{Name: "shared", MountPath: "/shared"}}}
}

func httpProbe(path string) *corev1.Probe {
	return &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 1, ProbeHandler: corev1.ProbeHandler{
		HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString("http")}}}
}

func TestPodSeesItsWorld(t *testing.T) {
	w := newTown(t)
	p := w.pod("web", "10.78.1.20", "fd78:1::20")
	c := w.container("web", "web")
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
	}
	c.Args = []string{"--id=$(POD_NAME)", "$$(POD_NAME)", "$(NOBODY)"}
	c.Env = append(c.Env, field("POD_NAME", "metadata.name"), field("POD_IPS", "status.podIPs"), field("NODE", "spec.nodeName"),
		field("SA", "spec.serviceAccountName"), field("UID", "metadata.uid"), field("APP", "metadata.labels['app']"),
		field("A", "metadata.annotations['heddle.dev/a']"), field("HOST", "status.hostIP"))
	c.Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}
	c.StartupProbe, c.ReadinessProbe = httpProbe("/env"), httpProbe("/ready")
	c.StartupProbe.FailureThreshold = 30
	user, off, on := int64(16000), false, true
	c.SecurityContext = &corev1.SecurityContext{RunAsUser: &user, RunAsNonRoot: &on, AllowPrivilegeEscalation: &off,
		ReadOnlyRootFilesystem: &on, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}
	seconds := int64(3)
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "token", VolumeSource: corev1.VolumeSource{
		Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{
			ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: "aud", ExpirationSeconds: &seconds, Path: "token"}}}}}})
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "token", MountPath: "/var/run/secrets/heddle.dev", ReadOnly: true})
	p.Spec.Containers = []corev1.Container{c}
	w.kubelet["n1"].Apply(p)
	st := w.await(p.UID, "ready", isReady).Status
	if st.PodIP != "10.78.1.20" || st.HostIP != "192.168.78.1" || st.Phase != corev1.PodRunning {
		t.Errorf("status: ip %s, host %s, %s", st.PodIP, st.HostIP, st.Phase)
	}
	const base = "http://10.78.1.20:8080"
	env := w.get(base + "/env")
	for _, want := range []string{"POD_NAME=web", "POD_IPS=10.78.1.20,fd78:1::20", "NODE=n1", "SA=robot", "UID=uid-web", "APP=web",
		"A=b", "HOST=192.168.78.1", "HOSTNAME=web", "--id=web", `"$(POD_NAME)"`, `"$(NOBODY)"`} {
		if !strings.Contains(env, want) {
			t.Errorf("environment lacks %s: %s", want, env)
		}
	}
	file := func(path string) string { return w.get(base + "/file?path=" + path) }
	if got := file("/etc/resolv.conf"); got != "nameserver 10.96.0.10\nsearch shop.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n" {
		t.Errorf("resolv.conf: %q", got)
	}
	if got := file("/etc/hosts"); !strings.Contains(got, "10.78.1.20\tweb\n") || file("/etc/hostname") != "web\n" {
		t.Errorf("hosts: %q", got)
	}
	for _, want := range []string{"Uid:\t16000", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1"} {
		if got := file("/proc/self/status"); !strings.Contains(got, want) {
			t.Errorf("no %q in %s", want, got)
		}
	}
	if got := w.get("http://[fd78:1::20]:8080/file?path=/etc/hostname"); got != "web\n" {
		t.Errorf("by IPv6: %q", got)
	}
	if got := w.get(base + "/probes"); !strings.HasPrefix(got, "10.78.1.1") {
		t.Errorf("probes came from %q, not from the node", got)
	}
	first := file("/var/run/secrets/heddle.dev/token")
	if !strings.Contains(first, " shop robot uid-web aud n1") {
		t.Errorf("token: %q", first)
	}
	w.execAndReady(t, p)
	deadline := time.Now().Add(10 * time.Second)
	for file("/var/run/secrets/heddle.dev/token") == first {
		if time.Now().After(deadline) {
			t.Fatal("the token was not renewed")
		}
		<-time.After(100 * time.Millisecond)
	}
	log, err := os.ReadFile(LogFile(w.state, p, "web"))
	if err != nil || string(log) != "serving\n" {
		t.Errorf("log: %q, %v", log, err)
	}
	w.kubelet["n1"].Delete(p.UID, time.Second)
	w.awaitDeleted(p.UID)
}

// execAndReady makes the pod unready and ready again from inside.
func (w *town) execAndReady(t *testing.T, p *corev1.Pod) {
	t.Helper()
	var out, errs bytes.Buffer
	sh := func(line string) int {
		code, err := Exec(t.Context(), ExecConfig{StateDir: w.state, Namespace: p.Namespace, Pod: p.Name,
			Command: []string{"/bin/sh", "-c", line}, Stdout: &out, Stderr: &errs})
		if err != nil {
			t.Fatal(err)
		}
		return code
	}
	if code := sh("id -u; hostname; exit 5"); code != 5 || out.String() != "16000\nweb\n" {
		t.Errorf("exec: code %d, %q, %q", code, out.String(), errs.String())
	}
	sh("touch /shared/unready")
	w.await(p.UID, "unready", func(p *corev1.Pod) bool { return !isReady(p) })
	sh("rm /shared/unready")
	w.await(p.UID, "ready again", isReady)
	_, err := Exec(t.Context(), ExecConfig{StateDir: w.state, Namespace: "shop", Pod: "nobody", Command: []string{"x"}})
	if err == nil {
		t.Error("exec in a pod that is not there")
	}
}

func TestSidecarStartsFirstAndEndsLast(t *testing.T) {
	w := newTown(t)
	p := w.pod("order", "10.78.1.21")
	side := w.container("side", "stamp")
	always := corev1.ContainerRestartPolicyAlways
	side.RestartPolicy = &always
	// The next waits for this; exec'd in the sidecar itself.
	side.StartupProbe = &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 30, TimeoutSeconds: 10, ProbeHandler: corev1.ProbeHandler{
		Exec: &corev1.ExecAction{Command: []string{"/bin/sh", "-c", "grep -q 'start side' /shared/stamps"}}}}
	p.Spec.InitContainers = []corev1.Container{w.container("init", "once"), side}
	app := w.container("app", "stamp")
	app.ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, TimeoutSeconds: 10, ProbeHandler: corev1.ProbeHandler{
		Exec: &corev1.ExecAction{Command: []string{"/bin/sh", "-c", "grep -q 'start app' /shared/stamps"}}}}
	p.Spec.Containers = []corev1.Container{app}
	// Kept beyond the pod, to be read afterwards.
	shared := t.TempDir()
	p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: shared}}
	w.kubelet["n1"].Apply(p)
	w.await(p.UID, "ready", isReady)
	p.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	w.kubelet["n1"].Apply(p) // as an API server tells it
	w.awaitDeleted(p.UID)
	got, err := os.ReadFile(filepath.Join(shared, "stamps"))
	if want := "once init\nstart side\nstart app\nend app\nend side\n"; err != nil || string(got) != want {
		t.Errorf("%v, got:\n%swant:\n%s", err, got, want)
	}
}

func TestWhatIsWrongIsSaid(t *testing.T) {
	w := newTown(t)
	crash := w.pod("crash", "10.78.1.22")
	crash.Spec.Containers = []corev1.Container{w.container("app", "crash")}
	empty := w.pod("empty", "10.78.1.23")
	empty.Spec.Containers = []corev1.Container{{Name: "app", Image: "nginx:1"}}
	lost := w.pod("lost")
	lost.Spec.Containers = []corev1.Container{w.container("app", "web")}
	for _, p := range []*corev1.Pod{crash, empty, lost} {
		w.kubelet["n1"].Apply(p)
	}
	w.await(crash.UID, "crash looping", func(p *corev1.Pod) bool {
		cs := p.Status.ContainerStatuses[0]
		return cs.RestartCount >= 2 && cs.State.Waiting != nil && cs.State.Waiting.Reason == "CrashLoopBackOff" &&
			cs.LastTerminationState.Terminated.ExitCode == 4
	})
	if log, err := os.ReadFile(LogFile(w.state, crash, "app")); err != nil || strings.Count(string(log), "about to crash\n") < 3 {
		t.Errorf("log: %q, %v", log, err)
	}
	w.await(empty.UID, "waiting with a reason", func(p *corev1.Pod) bool {
		wait := p.Status.ContainerStatuses[0].State.Waiting
		return wait != nil && wait.Reason == "CreateContainerError" && strings.Contains(wait.Message, `image "nginx:1" is ignored`) &&
			strings.Contains(wait.Message, "set command")
	})
	w.await(lost.UID, "without address", func(p *corev1.Pod) bool { return strings.Contains(p.Status.Message, "status.podIPs is empty") })
	for _, p := range []*corev1.Pod{crash, empty, lost} {
		w.kubelet["n1"].Delete(p.UID, 0)
		w.awaitDeleted(p.UID)
	}
}

func TestMemoryLimit(t *testing.T) {
	dirs, err := container.Limit("heddle-lab-probe", container.Limits{Memory: 1 << 30, MilliCPU: 500})
	container.Unlimit(dirs)
	if err != nil {
		meshtest.Skip(t, "limit memory by control groups", err)
	}
	w := newTown(t)
	p := w.pod("eats", "10.78.1.24")
	p.Spec.RestartPolicy = corev1.RestartPolicyNever
	c := w.container("app", "eat")
	c.Resources.Limits = corev1.ResourceList{"memory": resource.MustParse("64Mi"), "cpu": resource.MustParse("1")}
	p.Spec.Containers = []corev1.Container{c}
	w.kubelet["n1"].Apply(p)
	st := w.await(p.UID, "failed", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed }).Status.ContainerStatuses[0]
	if st.State.Terminated.ExitCode != 137 || st.State.Terminated.Reason != "OOMKilled" {
		t.Errorf("ended: %+v", st.State.Terminated)
	}
	for _, d := range dirs {
		if left, err := filepath.Glob(filepath.Join(filepath.Dir(d), "heddle-lab-*-app")); err != nil || len(left) != 0 {
			t.Errorf("control groups are left: %v", left)
		}
	}
}

func TestHostNetworkAndTwoNodes(t *testing.T) {
	w := newTown(t)
	host := w.pod("host")
	host.Spec.HostNetwork = true
	host.Spec.Containers = []corev1.Container{w.container("web", "web")}
	host.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}
	host.Spec.Containers[0].ReadinessProbe = httpProbe("/ready")
	w.kubelet["n1"].Apply(host)
	if st := w.await(host.UID, "ready", isReady).Status; st.PodIP != "192.168.78.1" {
		t.Errorf("address %s", st.PodIP)
	}
	if got := w.get("http://192.168.78.1:8080/file?path=/etc/hostname"); got != "n1\n" {
		t.Errorf("hostname %q", got)
	}
	// Ending the kubelets with the pod running must leave nothing (newTown's clean-up).
}

// runKubelet is the process that TestKilledKubelet kills.
func runKubelet(run, state string) {
	w := &town{state: state}
	var err error
	if w.fab, err = fabric.Open(run, "killed"); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	cfg := w.config("n1")
	cfg.OnStatus = func(p *corev1.Pod) {
		if isReady(p) {
			fmt.Println("ready")
		}
	}
	k := New(cfg)
	p := w.pod("left", "10.78.1.30")
	w.program, _ = os.Executable()
	p.Spec.Containers = []corev1.Container{w.container("a", "stamp"), w.container("b", "web")}
	k.Apply(p)
	fmt.Println(k.Run(context.Background()))
}

func TestKilledKubeletLeavesNothingBehind(t *testing.T) {
	meshtest.RequireRoot(t)
	for _, recorded := range []bool{true, false} {
		run, state := t.TempDir(), t.TempDir()
		if _, err := fabric.Up(network(run, "killed")); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = fabric.Down(run, "killed") })
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, "/proc/self/exe", run, state)
		cmd.Env = append(os.Environ(), "HEDDLE_TEST=kubelet")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line, _ := bufio.NewReader(out).ReadString('\n')
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if line != "ready\n" {
			t.Fatalf("kubelet says %q", line)
		}
		left, err := records(state)
		if err != nil || len(left) != 2 {
			t.Fatalf("records: %v, %v", left, err)
		}
		if recorded { // the records alone suffice
			if err := Clean(state); err != nil {
				t.Fatal(err)
			}
			gone(t, left[0].PID, left[1].PID)
		}
		// And so does the network.
		if err := fabric.Down(run, "killed"); err != nil {
			t.Fatal(err)
		}
		gone(t, left[0].PID, left[1].PID)
		if err := Clean(state); err != nil {
			t.Fatal(err)
		}
		for _, dir := range []string{run, state} {
			if es, err := os.ReadDir(dir); err != nil || len(es) != 0 {
				t.Errorf("left in %s: %v, %v", dir, es, err)
			}
		}
		if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(mounts), run) || strings.Contains(string(mounts), state) {
			t.Errorf("mounts are left (%v)", err)
		}
	}
}

// gone checks that processes run no more; one may wait to be reaped by the
// machine's init, with nothing left of it but its number.
func gone(t *testing.T, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err == nil && !strings.Contains(string(stat), ") Z ") {
			t.Errorf("process %d is left: %s", pid, stat)
		}
	}
}

func TestLogRotation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.log")
	l, err := openLog(path)
	if err != nil {
		t.Fatal(err)
	}
	l.max = 10
	for _, s := range []string{"aaaa\n", "bbbb\n", "cccc\n", "a line longer than a file may be\n", "d\n"} {
		if _, err := l.Write([]byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	l.Close()
	now, _ := os.ReadFile(path)
	before, _ := os.ReadFile(path + ".1")
	if string(now) != "d\n" || string(before) != "a line longer than a file may be\n" {
		t.Errorf("log %q, before %q", now, before)
	}
}

func TestExpand(t *testing.T) {
	v := map[string]string{"A": "1", "B": "$(A)"}
	for in, want := range map[string]string{
		"": "", "$": "$", "$(A)": "1", "x$(A)y$(A)": "x1y1", "$(B)": "$(A)", "$$(A)": "$(A)", "$$$(A)": "$1",
		"$(C)": "$(C)", "$(A": "$(A", "$A": "$A", "a$": "a$", "$()": "$()",
	} {
		if got := expand(in, v); got != want {
			t.Errorf("%q gives %q, want %q", in, got, want)
		}
	}
}

func FuzzExpand(f *testing.F) {
	for _, s := range []string{"", "$(A)", "$$(A)", "$(", "$", "$(A)$(B)$", "a$$b"} {
		f.Add(s, "v")
	}
	f.Fuzz(func(t *testing.T, s, v string) {
		got := expand(s, map[string]string{"A": v})
		if !strings.Contains(s, "$") && got != s {
			t.Errorf("%q became %q", s, got)
		}
		// Doubling every $ protects a text from any change.
		if got := expand(strings.ReplaceAll(s, "$", "$$"), map[string]string{"A": v}); got != s {
			t.Errorf("protected %q became %q", s, got)
		}
	})
}

func TestLongNames(t *testing.T) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: strings.Repeat("n", 63), Name: strings.Repeat("p", 253), UID: "u1"}}
	q := p.DeepCopy()
	q.UID = "u2"
	a, b := filepath.Base(podDir("/s", p)), filepath.Base(podDir("/s", q))
	if len(a) > 255 || a == b {
		t.Errorf("%q, %q", a, b)
	}
	h := &host{pod: p}
	if n := h.hostname(); len(n) != 63 {
		t.Errorf("hostname of %d bytes", len(n))
	}
}
