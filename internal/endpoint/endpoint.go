// Package endpoint says which endpoints of a Service a client may reach:
// readiness, the fall-back to terminating endpoints, traffic policies and
// topology hints, as kube-proxy has them. It does not choose among them and
// knows no addresses. Sidecars, the node agent and the control plane call it,
// so that a sidecar obeys the same rules as the forwarding it bypasses.
package endpoint

// Endpoint is what the rules read of one endpoint. Conditions are those of
// the EndpointSlice with nil resolved (KEP-1672).
type Endpoint struct {
	Ready, Serving, Terminating bool
	Node, Zone                  string
	HintZones, HintNodes        []string
}

// Client is where the caller stands.
type Client struct {
	Node string // "": no endpoint is local
	Zone string // "": zone hints are ignored
}

// Policy is the traffic policy in force.
type Policy struct {
	Local bool // internal- or externalTrafficPolicy: Local
}

// Verdict says what becomes of traffic; the zero value refuses.
type Verdict uint8

// The verdicts.
const (
	Reject Verdict = iota // no usable endpoint anywhere: refuse at once
	Drop                  // usable ones exist, but not for this policy
	Usable                // out holds at least one
)

func (v Verdict) String() string {
	switch v {
	case Usable:
		return "usable"
	case Drop:
		return "drop"
	}
	return "reject"
}

// Select appends to out[:0] the indexes of the endpoints that c may reach
// under p, in order. It allocates only if out is too small.
//
// Cluster policy: the ready ones that the topology hints leave; if none is
// ready, all that serve while they terminate, hints ignored. Local policy: the
// same among those of c's node, hints ignored (KEP-1669, KEP-2433, KEP-3015).
func Select(eps []Endpoint, c Client, p Policy, out []int) ([]int, Verdict) {
	out = out[:0]
	if p.Local {
		return selectLocal(eps, c, out)
	}
	byNode, byZone := hints(eps, c)
	for i := range eps {
		e := &eps[i]
		if !e.Ready || byNode && !contains(e.HintNodes, c.Node) || byZone && !contains(e.HintZones, c.Zone) {
			continue
		}
		out = append(out, i)
	}
	if len(out) == 0 {
		for i := range eps {
			if fallback(&eps[i]) {
				out = append(out, i)
			}
		}
	}
	if len(out) == 0 {
		return out, Reject
	}
	return out, Usable
}

func selectLocal(eps []Endpoint, c Client, out []int) ([]int, Verdict) {
	anywhere := false
	for i := range eps {
		e := &eps[i]
		anywhere = anywhere || e.Ready || fallback(e)
		if e.Ready && local(e, c) {
			out = append(out, i)
		}
	}
	if len(out) == 0 {
		for i := range eps {
			if fallback(&eps[i]) && local(&eps[i], c) {
				out = append(out, i)
			}
		}
	}
	switch {
	case len(out) > 0:
		return out, Usable
	case anywhere:
		return out, Drop
	}
	return out, Reject
}

// fallback: may be used while nothing is ready.
func fallback(e *Endpoint) bool { return e.Serving && e.Terminating }

// local: an endpoint that does not say its node is never local.
func local(e *Endpoint, c Client) bool { return e.Node != "" && e.Node == c.Node }

// hints says which hints count: those of nodes if every ready endpoint has
// some and one names the client's node, else those of zones likewise. One
// endpoint without hints means that the writer of the slices is not done, and
// filtering would overload the others.
func hints(eps []Endpoint, c Client) (byNode, byZone bool) {
	allNode, allZone, hasNode, hasZone := true, true, false, false
	for i := range eps {
		e := &eps[i]
		if !e.Ready {
			continue
		}
		allNode = allNode && len(e.HintNodes) > 0
		allZone = allZone && len(e.HintZones) > 0
		hasNode = hasNode || c.Node != "" && contains(e.HintNodes, c.Node)
		hasZone = hasZone || c.Zone != "" && contains(e.HintZones, c.Zone)
	}
	byNode = allNode && hasNode
	return byNode, !byNode && allZone && hasZone
}

func contains(list []string, s string) bool {
	for _, v := range list {
		if v == s {
			return true
		}
	}
	return false
}

// Better says whether a, of two copies of one ip:port that stand in several
// slices, is the one to keep. A copy that does not terminate wins, so that an
// endpoint moving between slices never blinks; then ready, then serving. Of
// equal copies the first stays, so a caller goes through slices by name.
func Better(a, b Endpoint) bool {
	if a.Terminating != b.Terminating {
		return !a.Terminating
	}
	if a.Ready != b.Ready {
		return a.Ready
	}
	return a.Serving && !b.Serving
}
