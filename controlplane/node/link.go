package node

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	pb "github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/controlplane/node/plan"
	"github.com/heddle-mesh/heddle/internal/control"
	"github.com/heddle-mesh/heddle/internal/run"
)

const (
	// askAgain is how old an answer of the API server may be: a stream and an
	// identity that are sought at once ask once, and a thousand agents that
	// lost the control plane do not ask in a tight loop.
	askAgain = 2 * time.Second
	// rootsFirst and rootsLast bound the pauses while the mesh's roots cannot
	// be had: the control plane publishes them seconds after it starts.
	rootsFirst = 500 * time.Millisecond
	rootsLast  = 5 * time.Second
	// dialEach bounds the attempt on one of the control plane's pods: a node
	// that died with it answers nothing.
	dialEach = 2 * time.Second
	// publishedAfter is the number of answers in a row, with no connection between
	// them, after which the published roots replace what the stream told, and again
	// after as many: so many are no hiccup.
	publishedAfter = 3
)

// link holds the connection to the control plane: it finds its pods, anew for
// each attempt, and follows its stream.
type link struct {
	a    *agent
	kept *pb.Update
	td   spiffeid.TrustDomain

	asking sync.Mutex          // held while the API server is asked, which may take long
	roots  []*x509.Certificate // as last published
	pods   []netip.AddrPort
	asked  time.Time
	since  time.Time // control.State.Since at the last answer
	vain   int       // answers since then

	mu     sync.Mutex
	client *control.Client[struct{}] // nil: the roots are not known yet
	err    error                     // why not
}

func newLink(a *agent, kept *pb.Update) *link {
	return &link{a: a, kept: kept, td: spiffeid.RequireTrustDomainFromString(a.cfg.TrustDomain)}
}

// run follows the control plane until ctx ends.
func (l *link) run(ctx context.Context) error {
	for wait := rootsFirst; ; wait = min(2*wait, rootsLast) {
		roots, err := l.a.finder.Roots(ctx)
		if err == nil {
			l.roots = roots
			break
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		l.note(err, "cannot get the mesh's roots yet")
		pause(ctx, wait/2+rand.N(wait/2))
	}
	client := control.New(control.Config[struct{}]{
		Address: "control plane", TrustDomain: l.a.cfg.TrustDomain, Kind: pb.PeerKind_PEER_KIND_NODE,
		TokenFile: l.a.cfg.TokenFile, Roots: l.roots, Identity: l.a.identity, Version: l.a.cfg.Version,
		Log: l.a.log, Metrics: l.a.registry, Node: l.kept, OnNode: l.a.take, Dial: l.dial,
		Compile: func(struct{}, *pb.Destination) struct{} { return struct{}{} },
	})
	l.mu.Lock()
	l.client = client
	l.mu.Unlock()
	g := run.NewGroup(ctx)
	g.Go("stream", client.Run)
	g.Go("first word", func(ctx context.Context) error {
		select {
		case <-client.Ready():
			l.a.meet() // also if it has nothing newer than what we kept
			<-ctx.Done()
		case <-ctx.Done():
		}
		return ctx.Err()
	})
	if err := g.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// note keeps an error for /debug and logs it when it is another than before.
func (l *link) note(err error, what string) {
	l.mu.Lock()
	fresh := l.err == nil || err != nil && l.err.Error() != err.Error()
	l.err = err
	l.mu.Unlock()
	if err != nil && fresh {
		l.a.log.Warn(what, "error", err)
	}
}

// dial connects to one of the control plane's pods.
func (l *link) dial(ctx context.Context, _ string) (net.Conn, error) {
	pods, err := l.find(ctx)
	if err != nil {
		return nil, err
	}
	rand.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
	d := net.Dialer{Timeout: dialEach}
	var errs []error
	for _, p := range pods {
		c, err := d.DialContext(ctx, "tcp", p.String())
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// find gives the control plane's pods. If the API server cannot be asked, by
// what the control plane itself told last.
func (l *link) find(ctx context.Context) ([]netip.AddrPort, error) {
	l.asking.Lock()
	defer l.asking.Unlock()
	if time.Since(l.asked) < askAgain && len(l.pods) > 0 {
		return slices.Clone(l.pods), nil
	}
	pods, err := l.a.finder.ControlPlane(ctx)
	if err != nil {
		if told := l.told(); len(told) > 0 {
			l.a.log.Warn("the API server did not tell where the control plane is; trying where it was", "error", err)
			return told, nil
		}
		return nil, fmt.Errorf("find the control plane: %w", err)
	}
	l.pods, l.asked = pods, time.Now()
	l.renewRoots(ctx)
	return slices.Clone(pods), nil
}

// renewRoots takes newly published roots: the ones we trust may have gone with
// a control plane that we have not met since. If no connection comes about, it
// takes the published ones even if they are as ever: the stream may have told
// of others since, and the control plane's authority may have been restored to
// what it was before. The caller holds asking.
func (l *link) renewRoots(ctx context.Context) {
	if since := l.state().Since; since != l.since {
		l.since, l.vain = since, 0
	}
	l.vain++
	roots, err := l.a.finder.Roots(ctx)
	same := slices.EqualFunc(roots, l.roots, (*x509.Certificate).Equal)
	if err != nil || same && l.vain%publishedAfter != 0 {
		return
	}
	if err := l.a.identity.SetBundles(map[spiffeid.TrustDomain][]*x509.Certificate{l.td: roots}); err != nil {
		l.a.log.Error("cannot trust the roots that were published", "error", err)
		return
	}
	l.roots = roots
	if !same {
		l.a.log.Info("the mesh's roots were published anew", "roots", len(roots))
	}
}

// told gives the endpoints of the control plane's own Service as we hold it.
func (l *link) told() []netip.AddrPort {
	for _, s := range l.a.told.Load().GetNode().GetServices() {
		if s.GetService().GetNamespace() != l.a.cfg.API.Namespace || s.GetService().GetName() != l.a.cfg.API.Service {
			continue
		}
		rules, _ := plan.Compile(s, plan.Node{Name: l.a.cfg.Node})
		for i, p := range s.GetService().GetPorts() {
			if p.GetName() != l.a.cfg.API.Port {
				continue
			}
			for f, action := range rules.Flows {
				if f.Proto == plan.TCP && uint32(f.Port) == s.GetService().GetPorts()[i].GetPort() {
					return slices.Clone(action.Serving)
				}
			}
		}
	}
	return nil
}

// state is for /debug and metrics.
func (l *link) state() control.State {
	l.mu.Lock()
	client, err := l.client, l.err
	l.mu.Unlock()
	if client != nil {
		return client.State()
	}
	s := control.State{}
	if err != nil {
		s.LastError = err.Error()
	}
	return s
}
