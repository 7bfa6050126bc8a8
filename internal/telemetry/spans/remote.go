package spans

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
)

const (
	// exportTimeout is for one batch, with connecting and all tries; then it is
	// dropped, so that what is told next is not much older. Longer than
	// reconnectMax, so that a batch outlives a collector's restart.
	exportTimeout = 15 * time.Second
	// retryWait is about the pause before the second try; it grows by half each
	// time, up to retryMax.
	retryWait = 500 * time.Millisecond
	retryMax  = 5 * time.Second
	// connectTimeout is for one attempt to connect.
	connectTimeout = 5 * time.Second
	// reconnectMax is how late, at most, a collector that came back is noticed:
	// gRPC's own two minutes would lose two minutes of spans.
	reconnectMax = 10 * time.Second
)

// remote is one collector.
type remote struct {
	address string
	otlp    sdk.SpanExporter
	*origin
}

// connect prepares the SDK's exporter; the first batch makes it connect. What
// the environment could set (OTEL_EXPORTER_OTLP_…) is given, but compression,
// which has no option for none: the mesh's settings decide, not the pod.
func connect(ctx context.Context, address string, c Config) (*remote, error) {
	dial := c.Dial
	if dial == nil {
		d := &net.Dialer{}
		dial = func(ctx context.Context, address string) (net.Conn, error) {
			return d.DialContext(ctx, "tcp", address)
		}
	}
	slow := backoff.DefaultConfig
	slow.MaxDelay = reconnectMax
	otlp, err := otlptracegrpc.New(ctx,
		// Names are resolved where we dial, anew each time, so that a collector
		// that has moved is found.
		otlptracegrpc.WithEndpoint("passthrough:///"+address),
		otlptracegrpc.WithTLSCredentials(insecure.NewCredentials()),
		otlptracegrpc.WithHeaders(nil),
		otlptracegrpc.WithTimeout(exportTimeout),
		// Without MaxElapsedTime: exportTimeout ends the tries, and a pause that the
		// collector asks for is kept until then.
		otlptracegrpc.WithRetry(otlptracegrpc.RetryConfig{Enabled: true, InitialInterval: retryWait, MaxInterval: retryMax}),
		otlptracegrpc.WithDialOption(
			grpc.WithContextDialer(dial),
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: slow, MinConnectTimeout: connectTimeout}),
			grpc.WithDisableServiceConfig(), grpc.WithDisableHealthCheck(), grpc.WithDisableRetry(), grpc.WithNoProxy()))
	if err != nil {
		return nil, fmt.Errorf("collector %s: %w", address, err)
	}
	return &remote{address: address, otlp: otlp, origin: newOrigin(c.Resource, c.Version)}, nil
}

// close ends the connection, at once also if ctx has ended: no call is under
// way then.
func (r *remote) close(ctx context.Context) {
	if r != nil {
		r.otlp.Shutdown(ctx)
	}
}

// export sends a batch, again while that may help and exportTimeout lasts, and
// gives how many spans the collector rejected.
func (r *remote) export(ctx context.Context, batch []*Span) (rejected int, err error) {
	err = r.otlp.ExportSpans(ctx, r.readable(batch))
	if err == nil {
		return 0, nil
	}
	if n, ok := partial(err); ok {
		return n, nil
	}
	return 0, fmt.Errorf("export spans: %w", err)
}

// partial reads from the exporter's error how many spans a collector rejected
// that took the others (OTLP, "Partial Success"). The error's type is internal
// to the exporter, so its text must do; a test holds the exporter to it.
func partial(err error) (rejected int, ok bool) {
	_, text, ok := strings.Cut(err.Error(), "OTLP partial success: ")
	if !ok {
		return 0, false
	}
	text = text[max(strings.LastIndexByte(text, '('), 0):] // before it is what the collector says
	_, err = fmt.Sscanf(text, "(%d spans rejected)", &rejected)
	return rejected, err == nil
}
