package control

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	pb "github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/wire"
)

// Names of the resources that are no addresses.
const (
	nameBundle  = "bundle"
	nameMesh    = "mesh"
	nameInbound = "inbound"
	nameNode    = "node"
)

// update applies one resource and answers for it.
func (c *Client[T]) update(u *pb.Update, out *outbox) {
	var v verdict
	if ip, ok := strings.CutPrefix(u.GetName(), addrPrefix); ok {
		addr, err := netip.ParseAddr(ip)
		if err != nil {
			return // never asked for
		}
		v = c.table.apply(addr, u)
	} else {
		v = c.applyOwn(u)
	}
	if v.changed {
		c.log.Info("destination changed", "name", u.GetName(), "revision", u.GetRevision())
	}
	if v.refused != "" {
		c.refused.Add(1)
		c.log.Warn("refused an update", "name", u.GetName(), "reason", v.refused)
	}
	if v.again {
		out.subscribe(u.GetName())
	}
	if v.ours && (!v.again || v.refused != "") {
		out.ack(&pb.Ack{Name: u.GetName(), Version: u.GetVersion(), Refused: v.refused})
	}
}

// applyOwn takes an update of a resource that is no address.
func (c *Client[T]) applyOwn(u *pb.Update) verdict {
	c.mu.Lock()
	had, known := c.has[u.GetName()]
	c.mu.Unlock()
	if known && u.GetRevision() < had.revision {
		return verdict{ours: true, refused: fmt.Sprintf("revision %d is older than %d, which I hold", u.GetRevision(), had.revision)}
	}
	if known && len(had.version) > 0 && bytes.Equal(had.version, u.GetVersion()) {
		return verdict{ours: true}
	}
	var err error
	switch content := u.GetContent().(type) {
	case *pb.Update_Bundles:
		err = c.setBundles(content.Bundles)
	case *pb.Update_Mesh:
		err = c.setMesh(content.Mesh)
	case *pb.Update_Inbound:
		if c.cfg.OnInbound != nil {
			c.cfg.OnInbound(content.Inbound)
		}
	case *pb.Update_Node:
		err = c.setNode(content.Node, u)
	case *pb.Update_NodeDelta:
		if c.node == nil || !bytes.Equal(content.NodeDelta.GetBaseVersion(), had.version) {
			return verdict{ours: true, again: true}
		}
		next, failed := wire.ApplyNode(c.node, content.NodeDelta)
		if failed != nil {
			return verdict{ours: true, again: true, refused: failed.Error()}
		}
		err = c.setNode(next, u)
	case nil:
		return verdict{ours: true} // the control plane has none: what we have stays
	default:
		return verdict{} // of a later version of this protocol
	}
	if err != nil {
		return verdict{ours: true, refused: err.Error()}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.has[u.GetName()] = held{version: u.GetVersion(), revision: u.GetRevision()}
	c.checkReady()
	return verdict{ours: true}
}

// setNode takes a node's Services. One goroutine calls it.
func (c *Client[T]) setNode(n *pb.NodeServices, u *pb.Update) error {
	if c.cfg.OnNode != nil {
		whole := &pb.Update{Name: nameNode, Version: u.GetVersion(), Revision: u.GetRevision(), Content: &pb.Update_Node{Node: n}}
		if err := c.cfg.OnNode(whole); err != nil {
			return err
		}
	}
	c.node = n
	return nil
}

// setBundles puts the trust roots into force at once: the next handshake uses
// them. A root that does not parse is left out and told; a trust domain
// without any good one is refused.
func (c *Client[T]) setBundles(b *pb.TrustBundles) error {
	out := map[spiffeid.TrustDomain][]*x509.Certificate{}
	for _, bundle := range b.GetBundles() {
		td, roots, err := c.parseBundle(bundle)
		if err != nil {
			return err
		}
		out[td] = roots
	}
	if len(out[c.controlPlane.TrustDomain()]) == 0 {
		return fmt.Errorf("the bundles hold no root of our own trust domain %s", c.controlPlane.TrustDomain())
	}
	if err := c.cfg.Identity.SetBundles(out); err != nil {
		return fmt.Errorf("set trust bundles: %w", err)
	}
	return nil
}

func (c *Client[T]) parseBundle(b *pb.TrustBundle) (spiffeid.TrustDomain, []*x509.Certificate, error) {
	td, err := spiffeid.TrustDomainFromString(b.GetTrustDomain())
	if err != nil {
		return td, nil, fmt.Errorf("trust bundle of %q: %w", b.GetTrustDomain(), err)
	}
	var roots []*x509.Certificate
	for _, der := range b.GetRoots() {
		root, err := x509.ParseCertificate(der)
		if err != nil {
			c.log.Warn("left out a malformed root", "trust_domain", td.String(), "error", err)
			continue
		}
		roots = append(roots, root)
	}
	if len(roots) == 0 {
		return td, nil, fmt.Errorf("trust bundle of %s holds no good root", td)
	}
	return td, roots, nil
}

func (c *Client[T]) setMesh(m *pb.MeshSettings) error {
	prefixes := make([]netip.Prefix, 0, len(m.GetClusterPrefixes()))
	for _, b := range m.GetClusterPrefixes() {
		p, err := parsePrefix(b)
		if err != nil {
			return err
		}
		prefixes = append(prefixes, p)
	}
	c.table.settle(prefixes)
	if c.cfg.OnMesh != nil {
		c.cfg.OnMesh(m)
	}
	return nil
}

// parsePrefix reads an address followed by one byte of prefix length.
func parsePrefix(b []byte) (netip.Prefix, error) {
	if len(b) == 0 {
		return netip.Prefix{}, errors.New("empty prefix")
	}
	addr, ok := netip.AddrFromSlice(b[:len(b)-1])
	if !ok {
		return netip.Prefix{}, fmt.Errorf("prefix %x: want 4 or 16 bytes of address and one of length", b)
	}
	p, err := addr.Prefix(int(b[len(b)-1]))
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("prefix %x: %w", b, err)
	}
	return p, nil
}
