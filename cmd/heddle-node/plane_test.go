package main

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	pb "github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/meshtest/pki"
	"github.com/heddle-mesh/heddle/internal/wire"
)

// plane is a scripted control plane.
type plane struct {
	t  *testing.T
	ca *pki.Authority
	// told is the authority that the stream tells to trust; nil: ca.
	told *pki.Authority

	mu    sync.Mutex
	node  *pb.NodeServices
	fresh chan struct{}
	// revision of node; never goes back, whoever asks.
	revision uint64
	hello    []*pb.Hello
}

type public struct {
	crypto.Signer
	key crypto.PublicKey
}

func (p public) Public() crypto.PublicKey { return p.key }

func (p *plane) Issue(_ context.Context, _ wire.Caller, req *pb.IssueRequest) (*pb.IssueResponse, error) {
	if req.GetServiceAccountToken() != "for the control plane" {
		return nil, fmt.Errorf("token %q", req.GetServiceAccountToken())
	}
	csr, err := x509.ParseCertificateRequest(req.Csr)
	if err != nil {
		return nil, err
	}
	svid := p.ca.SVIDForKey(p.t, "spiffe://demo.test/ns/heddle-system/sa/heddle-node", public{key: csr.PublicKey}, pki.Pod("agent", "uid-1"))
	now := time.Now()
	return &pb.IssueResponse{Chain: [][]byte{svid.Chain[0].Raw, svid.Chain[1].Raw}, ServerTimeUnix: now.Unix(), RenewAfterUnix: now.Add(time.Hour).Unix()}, nil
}

func (p *plane) Stream(ctx context.Context, _ wire.Caller, s wire.Stream) error {
	first, err := s.Recv()
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.hello = append(p.hello, first.GetHello())
	p.mu.Unlock()
	send := func(m *pb.ControlMessage) error {
		e, err := wire.Encode(m)
		if err != nil {
			return err
		}
		return s.Send(e)
	}
	trust := p.ca
	if p.told != nil {
		trust = p.told
	}
	roots := &pb.TrustBundles{Bundles: []*pb.TrustBundle{{TrustDomain: "demo.test", Roots: [][]byte{trust.Root.Raw}}}}
	for _, m := range []*pb.ControlMessage{
		{Message: &pb.ControlMessage_Welcome{Welcome: &pb.Welcome{Replica: "r1", HeartbeatSeconds: 5}}},
		{Message: &pb.ControlMessage_Update{Update: &pb.Update{Name: "bundle", Version: []byte("b"), Content: &pb.Update_Bundles{Bundles: roots}}}},
		{Message: &pb.ControlMessage_Update{Update: &pb.Update{Name: "mesh", Version: []byte("m"), Content: &pb.Update_Mesh{Mesh: &pb.MeshSettings{}}}}},
	} {
		if err := send(m); err != nil {
			return err
		}
	}
	for {
		p.mu.Lock()
		node, fresh, revision := p.node, p.fresh, p.revision
		p.mu.Unlock()
		if err := send(&pb.ControlMessage{Message: &pb.ControlMessage_Update{Update: &pb.Update{
			Name: "node", Version: wire.Hash(node), Revision: revision, Content: &pb.Update_Node{Node: node}}}}); err != nil {
			return err
		}
		select {
		case <-fresh:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// tell pushes Services to the agent.
func (p *plane) tell(n *pb.NodeServices) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.node = n
	p.revision++
	if p.fresh != nil {
		close(p.fresh)
	}
	p.fresh = make(chan struct{})
}

// api is as much of an API server as the agent asks.
type api struct {
	mu     sync.Mutex
	roots  string // published; empty: not yet
	planes string // address of the control plane's pod
	port   int
}

func (a *api) publish(roots []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.roots = string(roots)
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case r.Header.Get("Authorization") != "Bearer for the API":
		http.Error(w, "who are you", http.StatusUnauthorized)
	case r.URL.Path == "/api/v1/namespaces/heddle-system/configmaps/heddle-trust-bundle" && a.roots != "":
		fmt.Fprintf(w, `{"kind":"ConfigMap","data":{"roots.pem":%q}}`, a.roots)
	case r.URL.Path == "/apis/discovery.k8s.io/v1/namespaces/heddle-system/endpointslices" &&
		r.URL.Query().Get("labelSelector") == "kubernetes.io/service-name=heddle-controlplane":
		fmt.Fprintf(w, `{"items":[{"ports":[{"name":"grpc","port":%d},{"name":"http","port":1}],"endpoints":[
			{"addresses":["192.0.2.77"],"conditions":{"ready":false}},{"addresses":[%q],"conditions":{"ready":true}}]}]}`, a.port, a.planes)
	default:
		http.Error(w, "no such thing here", http.StatusNotFound)
	}
}

// serving is a certificate for the API's Service address, and its PEM.
func serving(t *testing.T, ip string) (tls.Certificate, []byte) {
	t.Helper()
	key := pki.Key(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "api"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.ParseIP(ip)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.(*ecdsa.PrivateKey).Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// files writes what the kubelet would mount.
func files(t *testing.T, ca []byte) string {
	t.Helper()
	dir := t.TempDir()
	for name, b := range map[string][]byte{"ca.crt": ca, "api-token": []byte("for the API\n"), "token": []byte("for the control plane\n")} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// service is a Service with endpoints elsewhere.
func service(vip string, endpoints ...string) *pb.NodeServices {
	s := &pb.Service{Namespace: "shop", Name: "orders", Vips: [][]byte{netip.MustParseAddr(vip).AsSlice()}, Ports: []*pb.ServicePort{{Name: "http", Port: 80}}}
	for _, e := range endpoints {
		at := netip.MustParseAddrPort(e)
		s.Endpoints = append(s.Endpoints, &pb.Endpoint{Key: at.Addr().AsSlice(), Address: at.Addr().AsSlice(), Ports: []uint32{uint32(at.Port())}, Ready: true, Serving: true})
	}
	return &pb.NodeServices{Services: []*pb.NodeService{{Service: s}}}
}
