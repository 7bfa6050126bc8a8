package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// play runs a loop against scripted answers (y, n, t: no answer in time) and
// writes each verdict with its second.
func play(t *testing.T, l Loop, answers string) (out string) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		start := time.Now()
		i := 0
		l.Run(ctx, func(ctx context.Context) error {
			if i == len(answers) {
				cancel()
				return nil
			}
			i++
			switch answers[i-1] {
			case 'y':
				return nil
			case 't':
				<-ctx.Done()
				return ctx.Err()
			}
			return errors.New("no")
		}, func(ok bool, err error) bool {
			out += fmt.Sprintf("%v@%v ", ok, time.Since(start))
			return true
		})
	})
	return strings.TrimSpace(out)
}

func TestLoop(t *testing.T) {
	s := time.Second
	for _, tc := range []struct {
		name, answers, want string
		loop                Loop
	}{
		{"first success at once", "yyy", "true@0s", Loop{Period: 10 * s, Timeout: s, Success: 1, Failure: 3}},
		{"delay", "y", "true@5s", Loop{Delay: 5 * s, Period: 10 * s, Timeout: s, Success: 1, Failure: 3}},
		{"threshold of failures", "ynnynnny", "true@0s false@1m0s true@1m10s", Loop{Period: 10 * s, Timeout: s, Success: 1, Failure: 3}},
		{"threshold of successes", "ynyyy", "true@3s", Loop{Period: s, Timeout: s, Success: 2, Failure: 3}},
		{"never good", "nnn", "false@2s", Loop{Period: s, Timeout: s, Success: 1, Failure: 3}},
		{"timeouts are failures and skip beats", "ttty", "false@10s true@18s", Loop{Period: 2 * s, Timeout: 4 * s, Success: 1, Failure: 2}},
		{"eager finds success early", "nnny", "true@600ms", Loop{Period: 10 * s, Timeout: s, Success: 1, Failure: 3, Eager: true}},
		{"eager failures do not count", strings.Repeat("n", 11) + "y", "false@2s true@2.2s",
			Loop{Period: s, Timeout: s, Success: 1, Failure: 3, Eager: true}},
		{"not eager once it was good", "ynny", "true@0s", Loop{Period: 10 * s, Timeout: s, Success: 1, Failure: 3, Eager: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := play(t, tc.loop, tc.answers); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestLoopEndsWhenTold(t *testing.T) {
	asked := 0
	Loop{Success: 1, Failure: 1, Period: time.Hour, Timeout: time.Second}.Run(t.Context(),
		func(context.Context) error { asked++; return nil }, func(bool, error) bool { return false })
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
}

func TestActions(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/ok" && r.URL.RawQuery == "a=b" && r.Host == "named" && r.Header.Get("X") == "y":
			w.WriteHeader(204)
		case r.URL.Path == "/moved":
			http.Redirect(w, r, "/nowhere", http.StatusFound)
		default:
			http.Error(w, "broken "+r.URL.Path, http.StatusServiceUnavailable)
		}
	}))
	defer srv.Close()
	host, port, err := net.SplitHostPort(srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	var d net.Dialer
	target := Target{IP: host, Dial: d.DialContext,
		Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: int32(srv.Listener.Addr().(*net.TCPAddr).Port)}},
		Exec: func(_ context.Context, argv []string, out io.Writer) (int, error) {
			fmt.Fprint(out, strings.Repeat("x", 2*bodyKept))
			return len(argv), nil
		}}
	get := func(path string, port intstr.IntOrString) Action {
		return Action{HTTP: &corev1.HTTPGetAction{Path: path, Port: port, Scheme: "HTTPS",
			HTTPHeaders: []corev1.HTTPHeader{{Name: "host", Value: "named"}, {Name: "X", Value: "y"}}}}
	}
	for _, tc := range []struct {
		name string
		a    Action
		want string // in the error; empty: yes
	}{
		{"http by number", get("/ok?a=b", intstr.Parse(port)), ""},
		{"http by name", get("ok?a=b", intstr.FromString("web")), ""},
		{"http redirect", get("/moved", intstr.FromString("web")), ""},
		{"http refused", get("/x", intstr.FromString("web")), "status 503: broken /x"},
		{"unknown port", get("/x", intstr.FromString("wep")), `no port named "wep"`},
		{"tcp", Action{TCP: &corev1.TCPSocketAction{Port: intstr.FromString("web")}}, ""},
		{"tcp nobody", Action{TCP: &corev1.TCPSocketAction{Port: intstr.FromInt32(1)}}, "connection refused"},
		{"exec", Action{Exec: &corev1.ExecAction{}}, ""},
		{"exec no", Action{Exec: &corev1.ExecAction{Command: []string{"a", "b"}}}, "exit code 2: xxx"},
		{"grpc", Action{GRPC: &corev1.GRPCAction{}}, "no gRPC probes"},
		{"none", Action{}, "without an action"},
	} {
		err := tc.a.Do(t.Context(), target)
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
}
