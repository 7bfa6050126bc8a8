package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/controlplane/state"
	decide "github.com/heddle-mesh/heddle/internal/policy"
	"github.com/heddle-mesh/heddle/internal/redirect"
	"github.com/heddle-mesh/heddle/internal/source"
)

// Verdicts.
const (
	Allowed   = "allowed"
	denied    = "refused"
	inPart    = "allowed in part"
	probeOnly = "refused, but for the node's probes"
)

// Report is the answer.
type Report struct {
	From      string      `json:"from"`
	Identity  string      `json:"identity,omitempty"` // empty: proves none
	Addresses []string    `json:"addresses,omitempty"`
	To        string      `json:"to"`
	Verdict   string      `json:"verdict"`
	Judged    []judgement `json:"judged"`
	Traffic   []treatment `json:"traffic,omitempty"`
	Notes     []string    `json:"notes,omitempty"`
}

// judgement is what holds for some ports of pods alike.
type judgement struct {
	Doors    []string   `json:"doors"` // namespace/pod:port
	Callers  []string   `json:"callers,omitempty"`
	Verdict  string     `json:"verdict"`
	Enforced bool       `json:"enforced"` // false: nobody asks the policies
	Reason   string     `json:"reason,omitempty"`
	By       string     `json:"by,omitempty"`
	Mode     string     `json:"mode,omitempty"`
	ModeBy   string     `json:"modeBy,omitempty"`
	Rules    []lookedAt `json:"rules,omitempty"`
}

// lookedAt is one rule and why it counts, or does not.
type lookedAt struct {
	Rule    string `json:"rule"`
	Action  string `json:"action"`
	Matches bool   `json:"matches"`
	Why     string `json:"why"`
}

// judge asks about one door, for each address that the caller may have.
func (e *Explainer) judge(who caller, d door) []judgement {
	if why := e.unguarded(d); why != "" {
		return []judgement{{Doors: []string{d.name()}, Verdict: Allowed, By: why}}
	}
	inbound := e.world.Resource("inbound", state.Peer{Namespace: d.pod.Namespace, ServiceAccount: d.pod.ServiceAccount, PodUID: d.pod.UID})
	var compiled *decide.Compiled // of nothing: refuses, as a sidecar without a policy does
	if inbound != nil {
		compiled = decide.Compile(inbound.Update.GetInbound(), e.domain)
	}
	addrs := who.addrs
	if len(addrs) == 0 {
		addrs = []netip.Addr{{}}
	}
	var out []judgement
	for _, a := range addrs {
		j := e.one(compiled, d, decide.Caller{ID: who.id, Addr: a})
		if a.IsValid() {
			j.Callers = []string{a.String()}
		}
		out = append(out, j)
	}
	return out
}

// unguarded says why nobody asks the policies at a door; "": a sidecar does.
func (e *Explainer) unguarded(d door) string {
	switch {
	case d.pod == nil:
		return "the endpoint is no pod: no sidecar enforces policies there"
	case d.pod.HostNetwork:
		return "the pod is on its node's network: no sidecar enforces policies there"
	case !d.pod.Meshed:
		return "the pod has no sidecar: nobody enforces policies there"
	case slices.ContainsFunc(d.pod.SkipInbound, func(r redirect.PortRange) bool { return r.First <= d.port && d.port <= r.Last }):
		return "the pod's redirect leaves this port alone: its sidecar does not see it"
	}
	return ""
}

func (e *Explainer) one(c *decide.Compiled, d door, who decide.Caller) judgement {
	x := decide.Explain(c, who, decide.Request{Port: d.port})
	j := judgement{Doors: []string{d.name()}, Enforced: true, Verdict: denied, Reason: string(x.Reason)}
	j.Mode, j.ModeBy = e.mode(d, x.Mode)
	seen := map[string]int{}
	for i, r := range x.Rules {
		name := e.rule(r.Source, seen[r.Source])
		seen[r.Source]++
		j.Rules = append(j.Rules, lookedAt{name, r.Action, r.Matches, r.Why})
		if i == x.By {
			j.By = name + " (" + r.Action + ")" + e.standing(r.Source)
		}
	}
	switch {
	case x.ProbeOnly:
		j.Verdict, j.Reason = probeOnly, ""
		j.By = "a bare connect, or HTTP to exactly the path that the pod declares, may be a probe of its node"
	case x.Allow:
		j.Verdict = Allowed
		if j.By == "" {
			j.By = "no policy with an allow or a deny selects the pod"
		}
	case x.Reason == decide.PlaintextRefused:
		j.By = "the mode: the caller proves no identity"
	case j.By == "":
		j.By = strings.ReplaceAll(x.Source, "AccessPolicy/", "AccessPolicy ")
		if len(x.Rules) == 0 {
			j.By = "a policy that is broken: " + j.By
		}
	}
	return j
}

// rule names a rule as its field: sources are kind/namespace/name#rule, and a
// rule is compiled once for each of its callers.
func (e *Explainer) rule(src string, nth int) string {
	ref, index := refOf(src)
	p := e.snap.AccessPolicies[source.Key{Namespace: ref.Namespace, Name: ref.Name}]
	if p == nil || index < 0 || index >= len(p.Spec.Rules) {
		return src
	}
	field := fmt.Sprintf("%s spec.rules[%d]", ref, index)
	if len(p.Spec.Rules[index].From) > 0 {
		field += fmt.Sprintf(".from[%d]", nth)
	}
	return field
}

func refOf(src string) (ref source.Ref, rule int) {
	object, number, _ := strings.Cut(src, "#")
	part := strings.Split(object, "/")
	if len(part) != 3 {
		return ref, -1
	}
	if _, err := fmt.Sscanf(number, "%d", &rule); err != nil {
		rule = -1
	}
	return source.Ref{Kind: part[0], Namespace: part[1], Name: part[2]}, rule
}

// standing is where the object of a rule stands, if that is known.
func (e *Explainer) standing(src string) string {
	ref, _ := refOf(src)
	if at := e.where[ref]; at != "" {
		return ", " + at
	}
	return ""
}

// mode says a port's mTLS mode and whose word it is.
func (e *Explainer) mode(d door, m wire.MtlsMode) (mode, by string) {
	mode = "strict"
	if m == wire.MtlsMode_MTLS_MODE_PERMISSIVE {
		mode = "permissive"
	}
	if p := e.access.ModeBy(d.pod, d.port); p != nil {
		ref := source.Ref{Kind: "AccessPolicy", Namespace: p.Namespace, Name: p.Name}
		by = ref.String() + " spec.mtls"
		if at := e.where[ref]; at != "" {
			by += ", " + at
		}
		return mode, by
	}
	switch mesh := e.snap.Mesh; {
	case mesh == nil:
		return mode, "nobody says another"
	case mesh.Name == "":
		return mode, "the MeshConfig cannot be understood"
	case mesh.Spec.MTLS == "":
		return mode, "neither MeshConfig nor an AccessPolicy says another"
	}
	by = "MeshConfig " + e.snap.Mesh.Name + " spec.mtls"
	if at := e.where[source.Ref{Kind: "MeshConfig", Name: e.snap.Mesh.Name}]; at != "" {
		by += ", " + at
	}
	return mode, by
}
