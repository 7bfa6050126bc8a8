package probe

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Action is one question of a probe or one lifecycle hook. Exactly one field
// is set.
type Action struct {
	HTTP *corev1.HTTPGetAction
	TCP  *corev1.TCPSocketAction
	Exec *corev1.ExecAction
	GRPC *corev1.GRPCAction // refused: see Do
}

// Target is the container asked.
type Target struct {
	IP    string // of the pod
	Ports []corev1.ContainerPort
	// Dial connects from the node.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Exec runs a program in the container.
	Exec func(ctx context.Context, argv []string, out io.Writer) (code int, err error)
}

// bodyKept is how much of an answer goes into an error: enough for a reason.
const bodyKept = 512

var errGRPC = errors.New("the lab has no gRPC probes: use httpGet, tcpSocket or exec")

// Do asks once; nil is yes.
func (a Action) Do(ctx context.Context, t Target) error {
	switch {
	case a.HTTP != nil:
		return a.http(ctx, t)
	case a.TCP != nil:
		port, err := portOf(a.TCP.Port, t.Ports)
		if err != nil {
			return err
		}
		c, err := t.Dial(ctx, "tcp", net.JoinHostPort(or(a.TCP.Host, t.IP), port))
		if err != nil {
			return fmt.Errorf("TCP probe: %w", err)
		}
		return c.Close()
	case a.Exec != nil:
		var out bytes.Buffer
		code, err := t.Exec(ctx, a.Exec.Command, &limited{w: &out, left: bodyKept})
		if err != nil {
			return fmt.Errorf("exec probe: %w", err)
		}
		if code != 0 {
			return fmt.Errorf("exec probe: exit code %d: %s", code, strings.TrimSpace(out.String()))
		}
		return nil
	case a.GRPC != nil:
		return errGRPC
	}
	return errors.New("a probe without an action")
}

// http counts 200 to 399 as yes, does not follow redirects and does not look
// at certificates, as a kubelet.
func (a Action) http(ctx context.Context, t Target) error {
	port, err := portOf(a.HTTP.Port, t.Ports)
	if err != nil {
		return err
	}
	u, err := url.Parse(a.HTTP.Path)
	if err != nil {
		return fmt.Errorf("HTTP probe: %w", err)
	}
	u.Scheme = strings.ToLower(or(string(a.HTTP.Scheme), "http"))
	u.Host = net.JoinHostPort(or(a.HTTP.Host, t.IP), port)
	if !strings.HasPrefix(u.Path, "/") {
		u.Path = "/" + u.Path
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return fmt.Errorf("HTTP probe: %w", err)
	}
	req.Header.Set("User-Agent", "kube-probe/heddle-lab")
	req.Header.Set("Accept", "*/*")
	for _, h := range a.HTTP.HTTPHeaders {
		if strings.EqualFold(h.Name, "Host") {
			req.Host = h.Value
			continue
		}
		req.Header.Set(h.Name, h.Value)
	}
	tr := &http.Transport{DialContext: t.Dial, DisableKeepAlives: true, DisableCompression: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} // what a kubelet does: the pod's certificate is none of its business
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("HTTP probe: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, bodyKept))
	if err != nil {
		return fmt.Errorf("HTTP probe: read answer: %w", err)
	}
	if resp.StatusCode < 200 || resp.StatusCode >= 400 {
		return fmt.Errorf("HTTP probe: status %d: %s", resp.StatusCode, strings.TrimSpace(string(body)))
	}
	return nil
}

func or(s, def string) string {
	if s == "" {
		return def
	}
	return s
}

func portOf(p intstr.IntOrString, ports []corev1.ContainerPort) (string, error) {
	if p.Type == intstr.Int {
		return strconv.Itoa(int(p.IntVal)), nil
	}
	for _, c := range ports {
		if c.Name == p.StrVal {
			return strconv.Itoa(int(c.ContainerPort)), nil
		}
	}
	if _, err := strconv.ParseUint(p.StrVal, 10, 16); err == nil {
		return p.StrVal, nil
	}
	return "", fmt.Errorf("the container has no port named %q", p.StrVal)
}

// limited keeps the first bytes and takes the rest for nothing.
type limited struct {
	w    *bytes.Buffer
	left int
}

func (l *limited) Write(b []byte) (int, error) {
	n := min(len(b), l.left)
	l.w.Write(b[:n])
	l.left -= n
	return len(b), nil
}
