// Package scenario reads the table of expected verdicts: text files that tell
// a node's Services and what becomes of packets. The plan's tests follow the
// packets through the rules, and each back end's tests send them for real. Only
// tests import it.
//
// A file, one statement a line, # begins a comment:
//
//	node NAME [zone=Z] ADDRESS... pods PREFIX...
//	range PREFIX...
//	service NAMESPACE/NAME ADDRESS... [local]
//	port NAME PROTO NUMBER
//	endpoint ADDRESS NUMBER[,NUMBER...] STATE [node=N] [zone=Z] [hint-zones=A,B] [hint-nodes=A,B]
//	from ADDRESS to PROTO ADDRESS:PORT -> OUTCOME
//
// STATE is ready, unready, draining (terminating, still serving) or gone
// (terminating, not serving). OUTCOME is as plan.Outcome says.
package scenario

import (
	"bufio"
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/controlplane/node/plan"
)

// Scenario is one file.
type Scenario struct {
	Name      string
	Node      string
	Addresses []netip.Addr // the node's own
	Told      *wire.NodeServices
	Checks    []Check
}

// Check is one packet and what becomes of it.
type Check struct {
	Line   int
	Packet plan.Packet
	Want   string
}

// Read reads all files of a folder.
func Read(t testing.TB, dir string) []Scenario {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios in %s: %v", dir, err)
	}
	var out []Scenario
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		s, err := parse(b)
		if err != nil {
			t.Fatalf("%s:%v", f, err)
		}
		s.Name = strings.TrimSuffix(filepath.Base(f), ".txt")
		out = append(out, s)
	}
	return out
}

// Rules compiles what the scenario tells.
func (s *Scenario) Rules(t testing.TB) *plan.Rules {
	t.Helper()
	r, errs := plan.All(s.Told, s.Node)
	for _, err := range errs {
		t.Errorf("%s: %v", s.Name, err)
	}
	return r
}

func parse(b []byte) (Scenario, error) {
	s := Scenario{Told: &wire.NodeServices{}}
	lines := bufio.NewScanner(bytes.NewReader(b))
	for n := 1; lines.Scan(); n++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		if words := strings.Fields(text); len(words) > 0 {
			if err := s.statement(words, n); err != nil {
				return s, fmt.Errorf("%d: %w", n, err)
			}
		}
	}
	return s, lines.Err()
}

func (s *Scenario) statement(w []string, line int) error {
	switch w[0] {
	case "node":
		return s.node(w[1:])
	case "range":
		return prefixes(&s.Told.ServicePrefixes, w[1:])
	case "service":
		return s.service(w[1:])
	case "port":
		return s.port(w[1:])
	case "endpoint":
		return s.endpoint(w[1:])
	case "from":
		return s.check(w, line)
	}
	return fmt.Errorf("unknown word %q", w[0])
}

func (s *Scenario) node(w []string) error {
	if len(w) == 0 {
		return fmt.Errorf("a node needs a name")
	}
	s.Node = w[0]
	for i, v := range w[1:] {
		if z, ok := strings.CutPrefix(v, "zone="); ok {
			s.Told.Zone = z
			continue
		}
		if v == "pods" {
			return prefixes(&s.Told.PodPrefixes, w[i+2:])
		}
		a, err := netip.ParseAddr(v)
		if err != nil {
			return err
		}
		s.Addresses = append(s.Addresses, a)
	}
	return nil
}

func prefixes(to *[][]byte, w []string) error {
	for _, v := range w {
		p, err := netip.ParsePrefix(v)
		if err != nil {
			return err
		}
		*to = append(*to, append(p.Addr().AsSlice(), byte(p.Bits())))
	}
	return nil
}

func (s *Scenario) service(w []string) error {
	ns, name, ok := strings.Cut(w[0], "/")
	if !ok {
		return fmt.Errorf("service %q: want namespace/name", w[0])
	}
	svc := &wire.Service{Namespace: ns, Name: name}
	for _, v := range w[1:] {
		if v == "local" {
			svc.InternalTrafficPolicy = wire.TrafficScope_TRAFFIC_SCOPE_LOCAL
			continue
		}
		a, err := netip.ParseAddr(v)
		if err != nil {
			return err
		}
		svc.Vips = append(svc.Vips, a.AsSlice())
	}
	s.Told.Services = append(s.Told.Services, &wire.NodeService{Service: svc})
	return nil
}

func (s *Scenario) last() (*wire.Service, error) {
	if len(s.Told.Services) == 0 {
		return nil, fmt.Errorf("no service before this line")
	}
	return s.Told.Services[len(s.Told.Services)-1].Service, nil
}

func (s *Scenario) port(w []string) error {
	svc, err := s.last()
	if err != nil {
		return err
	}
	if len(w) != 3 {
		return fmt.Errorf("want port NAME PROTO NUMBER")
	}
	n, err := strconv.ParseUint(w[2], 10, 16)
	if err != nil {
		return err
	}
	transport, ok := wire.Transport_value["TRANSPORT_"+strings.ToUpper(w[1])]
	if !ok {
		return fmt.Errorf("unknown protocol %q", w[1])
	}
	svc.Ports = append(svc.Ports, &wire.ServicePort{Name: w[0], Port: uint32(n), Transport: wire.Transport(transport)})
	return nil
}

func (s *Scenario) endpoint(w []string) error {
	svc, err := s.last()
	if err != nil {
		return err
	}
	if len(w) < 3 {
		return fmt.Errorf("want endpoint ADDRESS NUMBERS STATE")
	}
	a, err := netip.ParseAddr(w[0])
	if err != nil {
		return err
	}
	e := &wire.Endpoint{Key: a.AsSlice(), Address: a.AsSlice()}
	for v := range strings.SplitSeq(w[1], ",") {
		n, err := strconv.ParseUint(v, 10, 16)
		if err != nil {
			return err
		}
		e.Ports = append(e.Ports, uint32(n))
	}
	e.Ready, e.Serving = w[2] == "ready", w[2] == "ready" || w[2] == "draining"
	e.Terminating = w[2] == "draining" || w[2] == "gone"
	for _, v := range w[3:] {
		key, value, _ := strings.Cut(v, "=")
		switch key {
		case "node":
			e.Node = value
		case "zone":
			e.Zone = value
		case "hint-zones":
			e.HintZones = strings.Split(value, ",")
		case "hint-nodes":
			e.HintNodes = strings.Split(value, ",")
		default:
			return fmt.Errorf("unknown word %q", v)
		}
	}
	svc.Endpoints = append(svc.Endpoints, e)
	return nil
}

func (s *Scenario) check(w []string, line int) error {
	if len(w) < 7 || w[2] != "to" || w[5] != "->" {
		return fmt.Errorf("want from ADDRESS to PROTO ADDRESS:PORT -> OUTCOME")
	}
	from, err := netip.ParseAddr(w[1])
	if err != nil {
		return err
	}
	to, err := netip.ParseAddrPort(w[4])
	if err != nil {
		return err
	}
	proto, ok := map[string]plan.Proto{"tcp": plan.TCP, "udp": plan.UDP, "sctp": plan.SCTP}[w[3]]
	if !ok {
		return fmt.Errorf("unknown protocol %q", w[3])
	}
	s.Checks = append(s.Checks, Check{
		Line: line, Packet: plan.Packet{From: from, To: plan.Flow{Addr: to.Addr(), Proto: proto, Port: to.Port()}}, Want: strings.Join(w[6:], " "),
	})
	return nil
}
