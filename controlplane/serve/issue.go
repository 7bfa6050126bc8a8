package serve

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	pb "github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/controlplane/ca"
	"github.com/heddle-mesh/heddle/controlplane/state"
	"github.com/heddle-mesh/heddle/internal/source"
	"github.com/heddle-mesh/heddle/internal/wire"
)

// issue proves the caller, then signs. Only the request's public key is used.
func (s *Server) issue(ctx context.Context, from wire.Caller, req *pb.IssueRequest) (*pb.IssueResponse, error) {
	if n := len(req.GetCsr()); n == 0 || n > maxCSR {
		return nil, wire.Refuse(wire.Invalid, "certificate request of %d bytes: want 1 to %d", n, maxCSR)
	}
	if !s.rate.take(time.Now()) {
		return nil, wire.Refuse(wire.Exhausted, "more than %.0f requests for an identity per second: try again later", issueRate)
	}
	done, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	who, err := s.prove(ctx, from, req)
	done()
	if err != nil {
		return nil, err
	}
	// Outside the bound on concurrency: who waits here is proven.
	pod, err := s.waitForPod(ctx, who)
	if err != nil {
		return nil, err
	}
	if pod.Phase == "Succeeded" || pod.Phase == "Failed" {
		// Its object, and with it its token, may stand for days; nothing of it
		// runs that would need an identity.
		return nil, wire.Refuse(wire.Denied, "pod %s/%s is over (%s)", pod.Namespace, pod.Name, pod.Phase)
	}
	id, err := spiffeid.FromSegments(s.cfg.TrustDomain, "ns", pod.Namespace, "sa", pod.ServiceAccount)
	if err != nil {
		return nil, wire.Refuse(wire.Denied, "%s/%s makes no SPIFFE ID: %v", pod.Namespace, pod.ServiceAccount, err)
	}
	chain, notAfter, err := s.cfg.Authority.Sign(req.Csr, ca.Subject{ID: id, PodUID: pod.UID, Pod: pod.Name + "." + pod.Namespace})
	if errors.Is(err, ca.ErrRequest) {
		return nil, wire.Refuse(wire.Invalid, "%v", err)
	}
	if err != nil {
		s.log.Error("cannot sign", "pod", pod.Namespace+"/"+pod.Name, "error", err)
		return nil, wire.Refuse(wire.Unavailable, "the certificate authority cannot sign now")
	}
	now := time.Now()
	s.log.Info("issued an identity", "id", id.String(), "pod", pod.Namespace+"/"+pod.Name, "renewed", req.GetRenew())
	return &pb.IssueResponse{
		Chain: chain, Bundle: s.cfg.Authority.Bundle(), ServerTimeUnix: now.Unix(),
		RenewAfterUnix: now.Add(around(notAfter.Sub(now)/2, renewJitter)).Unix(),
	}, nil
}

// enter waits for a place among the concurrent.
func (s *Server) enter(ctx context.Context) (done func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, issueWait)
	defer cancel()
	select {
	case s.busy <- struct{}{}:
		return func() { <-s.busy }, nil
	case <-s.stop:
		return nil, wire.Refuse(wire.Unavailable, "the control plane stops")
	case <-ctx.Done():
		return nil, wire.Refuse(wire.Exhausted, "too many requests for an identity at one time: try again later")
	}
}

// prove finds out who calls, by token or by the present SVID.
func (s *Server) prove(ctx context.Context, from wire.Caller, req *pb.IssueRequest) (state.Peer, error) {
	switch c := req.GetCredential().(type) {
	case *pb.IssueRequest_ServiceAccountToken:
		return s.proveToken(ctx, c.ServiceAccountToken)
	case *pb.IssueRequest_Renew:
		if !c.Renew || !from.Known {
			return state.Peer{}, wire.Refuse(wire.Unauthenticated, "renewal needs the present certificate on the connection")
		}
		return s.peerOf(from)
	case *pb.IssueRequest_JoinToken:
		return state.Peer{}, wire.Refuse(wire.Unsupported, "join tokens are not offered yet: use a service account token")
	}
	return state.Peer{}, wire.Refuse(wire.Invalid, "the request carries no credential")
}

func (s *Server) proveToken(ctx context.Context, token string) (state.Peer, error) {
	if n := len(token); n == 0 || n > maxToken {
		return state.Peer{}, wire.Refuse(wire.Invalid, "token of %d bytes: want 1 to %d", n, maxToken)
	}
	ctx, cancel := context.WithTimeout(ctx, reviewWait)
	defer cancel()
	info, err := s.cfg.Tokens.ReviewToken(ctx, token, Audience)
	switch {
	case errors.Is(err, source.ErrToken):
		return state.Peer{}, wire.Refuse(wire.Unauthenticated, "%v", err)
	case err != nil:
		s.log.Error("cannot review a token", "error", err)
		return state.Peer{}, wire.Refuse(wire.Unavailable, "tokens cannot be reviewed now")
	case info.PodUID == "":
		return state.Peer{}, wire.Refuse(wire.Unauthenticated, "token refused: it is not bound to a pod (use a projected token)")
	}
	return state.Peer{Namespace: info.Namespace, ServiceAccount: info.ServiceAccount, PodUID: info.PodUID}, nil
}

// peerOf reads the caller's certificate.
func (s *Server) peerOf(from wire.Caller) (state.Peer, error) {
	id := from.Peer.ID
	if id.TrustDomain() != s.cfg.TrustDomain {
		return state.Peer{}, wire.Refuse(wire.Denied, "%s is not of trust domain %s", id, s.cfg.TrustDomain)
	}
	part := strings.Split(id.Path(), "/")
	if len(part) != 5 || part[1] != "ns" || part[3] != "sa" {
		return state.Peer{}, wire.Refuse(wire.Denied, "%s names no service account", id)
	}
	if from.Peer.PodUID == "" {
		return state.Peer{}, wire.Refuse(wire.Denied, "the certificate of %s names no pod", id)
	}
	return state.Peer{Namespace: part[2], ServiceAccount: part[4], PodUID: from.Peer.PodUID}, nil
}

// waitForPod gives the proven caller's pod. A pod that our world does not have
// yet may be newer than it, so it gets podWait to appear.
func (s *Server) waitForPod(ctx context.Context, who state.Peer) (*source.Pod, error) {
	late := time.NewTimer(podWait)
	defer late.Stop()
	for {
		world, changed := s.cfg.Worlds.Current()
		if world != nil {
			if pod := world.PodByUID(who.PodUID); pod != nil {
				return s.checkPod(pod, who)
			}
		}
		select {
		case <-changed:
		case <-late.C:
			if world == nil {
				return nil, wire.Refuse(wire.Unavailable, "the control plane has not read its source yet")
			}
			return nil, wire.Refuse(wire.Unauthenticated, "pod %s of %s/%s is gone", who.PodUID, who.Namespace, who.ServiceAccount)
		case <-s.stop:
			return nil, wire.Refuse(wire.Unavailable, "the control plane stops")
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// checkPod refuses a credential that names a pod of somebody else.
func (s *Server) checkPod(pod *source.Pod, who state.Peer) (*source.Pod, error) {
	if pod.Namespace != who.Namespace || pod.ServiceAccount != who.ServiceAccount {
		return nil, wire.Refuse(wire.Unauthenticated, "pod %s is %s/%s of service account %s, the credential says %s/%s",
			who.PodUID, pod.Namespace, pod.Name, pod.ServiceAccount, who.Namespace, who.ServiceAccount)
	}
	return pod, nil
}

// recognise admits a peer to the stream, by its certificate alone.
func (s *Server) recognise(ctx context.Context, from wire.Caller) (who state.Peer, pod string, err error) {
	if who, err = s.peerOf(from); err != nil {
		return who, "", err
	}
	p, err := s.waitForPod(ctx, who)
	if err != nil {
		return who, "", err
	}
	return who, p.Namespace + "/" + p.Name, nil
}
