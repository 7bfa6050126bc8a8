package spans

import (
	"context"
	"fmt"
	"net"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// reconnectMax is how late, at most, a collector that came back is noticed:
// gRPC's own two minutes would lose two minutes of spans.
const reconnectMax = 10 * time.Second

// remote is the connection to one collector.
type remote struct {
	address string
	cc      *grpc.ClientConn
}

// connect prepares a connection; the first call makes it. dial may be nil.
func connect(address string, dial func(context.Context, string) (net.Conn, error)) (*remote, error) {
	if dial == nil {
		d := &net.Dialer{}
		dial = func(ctx context.Context, address string) (net.Conn, error) {
			return d.DialContext(ctx, "tcp", address)
		}
	}
	slow := backoff.DefaultConfig
	slow.MaxDelay = reconnectMax
	// Names are resolved where we dial, anew each time, so that a collector that
	// has moved is found.
	cc, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(dial),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: slow, MinConnectTimeout: callTimeout}),
		grpc.WithDisableServiceConfig(), grpc.WithDisableHealthCheck(), grpc.WithDisableRetry(), grpc.WithNoProxy())
	if err != nil {
		return nil, fmt.Errorf("collector %s: %w", address, err)
	}
	return &remote{address: address, cc: cc}, nil
}

func (r *remote) close() {
	if r != nil {
		r.cc.Close()
	}
}

// export makes one call and gives how many spans the collector rejected; again:
// the same may be sent once more (OTLP, "Failures").
func (r *remote) export(ctx context.Context, req *collector.ExportTraceServiceRequest) (rejected int, again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := collector.NewTraceServiceClient(r.cc).Export(ctx, req, grpc.WaitForReady(true))
	if err == nil {
		return int(res.GetPartialSuccess().GetRejectedSpans()), false, nil
	}
	switch status.Code(err) {
	case codes.Canceled, codes.DeadlineExceeded, codes.Aborted, codes.OutOfRange, codes.Unavailable, codes.DataLoss:
		again = true
	}
	return 0, again, fmt.Errorf("export spans: %w", err)
}
