package patch

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
	"github.com/heddle-mesh/heddle/internal/redirect"
)

// maxEntries bounds each list of an annotation: every entry is a rule in the
// kernel of the pod, and part of a command line.
const maxEntries = 64

// settings are one pod's choices, parsed; nothing of a user's text goes
// further than here.
type settings struct {
	skipOutbound, skipInbound []redirect.PortRange
	skipCIDRs                 []netip.Prefix
	skipUIDs                  []uint32
	classic                   bool
	logLevel, backend         string
	resources                 corev1.ResourceRequirements
}

// reader looks annotations up, first on the pod, then on the namespace, and
// collects what is wrong with them.
type reader struct {
	pod, ns map[string]string
	who     subject
	nsName  string
	errs    []error
}

// get calls parse with the value, if there is one, and keeps its error.
func (r *reader) get(key string, parse func(string) error) {
	who, v, ok := r.who, "", false
	if v, ok = r.pod[key]; !ok {
		who = subject{object: "Namespace " + r.nsName}
		if v, ok = r.ns[key]; !ok {
			return
		}
	}
	if err := parse(v); err != nil {
		r.errs = append(r.errs, who.err(fmt.Sprintf("metadata.annotations[%q]", key), "%v", err))
	}
}

func readSettings(pod *corev1.Pod, ns Namespace, cfg Config, who subject) (settings, []string, error) {
	s := settings{classic: cfg.Classic, logLevel: "info", backend: "auto"}
	r := &reader{pod: pod.Annotations, ns: ns.Annotations, who: who, nsName: ns.Name}
	r.get(v1alpha1.SkipOutboundPorts, func(v string) error { return list(v, &s.skipOutbound, portRange) })
	r.get(v1alpha1.SkipInboundPorts, func(v string) error { return list(v, &s.skipInbound, portRange) })
	r.get(v1alpha1.SkipOutboundCIDRs, func(v string) error { return list(v, &s.skipCIDRs, prefix) })
	r.get(v1alpha1.SkipUIDs, func(v string) error { return list(v, &s.skipUIDs, userID) })
	r.get(v1alpha1.LogLevel, func(v string) error { return choice(v, &s.logLevel, "debug", "info", "warn", "error") })
	r.get(v1alpha1.RedirectBackend, func(v string) error {
		return choice(v, &s.backend, "auto", "nftables", "iptables-nft", "iptables-legacy")
	})
	r.get(v1alpha1.NativeSidecar, func(v string) error {
		var native string
		err := choice(v, &native, "true", "false")
		s.classic = native == "false"
		return err
	})
	s.resources = r.resources(cfg.Resources)
	if len(r.errs) > 0 {
		return settings{}, nil, oneLine(r.errs)
	}
	for _, p := range cfg.ExcludedPorts {
		s.skipOutbound = append(s.skipOutbound, redirect.PortRange{First: p, Last: p})
		s.skipInbound = append(s.skipInbound, redirect.PortRange{First: p, Last: p})
	}
	s.skipOutbound, s.skipInbound = merge(s.skipOutbound), merge(s.skipInbound)
	return s, warn(pod, cfg, s, who), nil
}

// resources reads the four quantities over the mesh's defaults.
func (r *reader) resources(base corev1.ResourceRequirements) corev1.ResourceRequirements {
	out := corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}
	for name, q := range defaultRequests() {
		out.Requests[name] = q
	}
	for name, q := range base.Requests {
		out.Requests[name] = q
	}
	for name, q := range base.Limits {
		out.Limits[name] = q
	}
	for _, row := range []struct {
		name           corev1.ResourceName
		request, limit string
	}{
		{corev1.ResourceCPU, v1alpha1.CPURequest, v1alpha1.CPULimit},
		{corev1.ResourceMemory, v1alpha1.MemoryRequest, v1alpha1.MemoryLimit},
	} {
		asked := false
		r.get(row.request, func(v string) error { asked = true; return quantity(v, out.Requests, row.name) })
		r.get(row.limit, func(v string) error { return quantity(v, out.Limits, row.name) })
		limit, limited := out.Limits[row.name]
		if request := out.Requests[row.name]; !limited || request.Cmp(limit) <= 0 {
			continue
		}
		if asked {
			r.get(row.request, func(v string) error {
				return fmt.Errorf("%s is more than the limit %s (lower it, or raise the limit)", quote(v), limit.String())
			})
			continue
		}
		out.Requests[row.name] = limit // a lower limit lowers the default request
	}
	if len(out.Limits) == 0 {
		out.Limits = nil
	}
	return out
}

// warn names what is allowed and rarely meant.
func warn(pod *corev1.Pod, cfg Config, s settings, who subject) []string {
	var out []string
	for _, key := range sortedKeys(pod.Annotations) {
		if strings.HasPrefix(key, v1alpha1.Group+"/") && !known[key] {
			out = append(out, who.err(fmt.Sprintf("metadata.annotations[%q]", quoteKey(key)), "unknown, ignored").Error())
		}
	}
	for _, skip := range s.skipCIDRs {
		for _, c := range cfg.ClusterPrefixes {
			if skip.Overlaps(c) {
				out = append(out, who.err(fmt.Sprintf("metadata.annotations[%q]", v1alpha1.SkipOutboundCIDRs), "%s covers addresses of the cluster (%s): calls there leave the mesh", skip, c).Error())
				break
			}
		}
	}
	if s.classic && pod.Spec.RestartPolicy != "" && pod.Spec.RestartPolicy != corev1.RestartPolicyAlways {
		out = append(out, who.err("spec.restartPolicy", "%s: this pod is to end, but an ordinary sidecar container does not end with it (use the native form)", pod.Spec.RestartPolicy).Error())
	}
	return out
}

// known are the annotations we read or write.
var known = map[string]bool{
	v1alpha1.InjectKey: true, v1alpha1.StatusKey: true, v1alpha1.SkipOutboundPorts: true, v1alpha1.SkipInboundPorts: true,
	v1alpha1.SkipOutboundCIDRs: true, v1alpha1.SkipUIDs: true, v1alpha1.NativeSidecar: true, v1alpha1.LogLevel: true,
	v1alpha1.CPURequest: true, v1alpha1.CPULimit: true, v1alpha1.MemoryRequest: true, v1alpha1.MemoryLimit: true,
	v1alpha1.RedirectBackend: true,
}

// list parses comma-separated entries; spaces around them do not matter.
func list[T comparable](v string, out *[]T, parse func(string) (T, error)) error {
	if strings.TrimSpace(v) == "" {
		return nil
	}
	if n := strings.Count(v, ",") + 1; n > maxEntries {
		return fmt.Errorf("%d entries, more than %d (use ranges)", n, maxEntries)
	}
	for entry := range strings.SplitSeq(v, ",") {
		x, err := parse(strings.TrimSpace(entry))
		if err != nil {
			return err
		}
		if !slices.Contains(*out, x) {
			*out = append(*out, x)
		}
	}
	return nil
}

func portRange(v string) (redirect.PortRange, error) {
	from, to, isRange := strings.Cut(v, "-")
	if !isRange {
		to = from
	}
	first, err1 := port(from)
	last, err2 := port(to)
	if err1 != nil || err2 != nil || first > last {
		return redirect.PortRange{}, fmt.Errorf("%s is not a port or a range (write ports from 1 to 65535, such as 3306,8000-8100)", quote(v))
	}
	return redirect.PortRange{First: first, Last: last}, nil
}

func port(v string) (uint16, error) {
	n, err := digits(v, 16)
	if err == nil && n == 0 {
		err = strconv.ErrRange
	}
	return uint16(n), err
}

func userID(v string) (uint32, error) {
	n, err := digits(v, 32)
	if err != nil || n == math.MaxUint32 { // the kernel's "nobody in particular"
		return 0, fmt.Errorf("%s is not a user ID (write numbers from 0 to 4294967294, comma-separated)", quote(v))
	}
	return uint32(n), nil
}

// digits is ParseUint without its leniences ("+1", "0x", "1_0" are mistakes
// here).
func digits(v string, bits int) (uint64, error) {
	if strings.Trim(v, "0123456789") != "" {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseUint(v, 10, bits)
}

func prefix(v string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(v)
	switch {
	case err != nil || p.Addr().Is4In6():
		return p, fmt.Errorf("%s is not an address range (write such as 203.0.113.0/24 or 2001:db8::/32)", quote(v))
	case p.Masked() != p:
		return p, fmt.Errorf("%s has address bits after its length (write %s)", quote(v), p.Masked())
	}
	return p, nil
}

func choice(v string, out *string, choices ...string) error {
	if !slices.Contains(choices, v) {
		return fmt.Errorf("%s is not a choice (write %s)", quote(v), strings.Join(choices, ", "))
	}
	*out = v
	return nil
}

func quantity(v string, out corev1.ResourceList, name corev1.ResourceName) error {
	q, err := resource.ParseQuantity(v)
	if err != nil || q.Sign() <= 0 {
		return fmt.Errorf("%s is not an amount of %s (write such as 100m or 64Mi)", quote(v), name)
	}
	out[name] = q
	return nil
}

// merge sorts ranges and joins those that touch, so that the same choice
// always gives the same pod.
func merge(in []redirect.PortRange) []redirect.PortRange {
	slices.SortFunc(in, func(a, b redirect.PortRange) int {
		return cmp.Or(cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last))
	})
	var out []redirect.PortRange
	for _, r := range in {
		if n := len(out); n > 0 && int(r.First) <= int(out[n-1].Last)+1 {
			out[n-1].Last = max(out[n-1].Last, r.Last)
			continue
		}
		out = append(out, r)
	}
	return out
}

// oneLine joins errors for messages that have one line.
func oneLine(errs []error) error {
	var text []string
	for _, e := range errs {
		text = append(text, e.Error())
	}
	return errors.New(strings.Join(text, "; "))
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func quoteKey(key string) string { return key[:min(len(key), quotedBytes)] }
