package policy

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
	"github.com/heddle-mesh/heddle/cmd/heddle/policy/explain"
	"github.com/heddle-mesh/heddle/cmd/heddle/policy/place"
	"github.com/heddle-mesh/heddle/internal/source"
)

// getFlags of "get".
type getFlags struct {
	*options
	namespace string
	all       bool
	output    string
	now       func() time.Time
}

func newGet(o *options) *cobra.Command {
	f := &getFlags{options: o, now: time.Now}
	cmd := &cobra.Command{
		Use:   "get [KIND[/NAME]]",
		Short: "Show policies: for whom, what they say, and whether they are in force",
		Long: `Shows MeshConfig, AccessPolicy and TrafficPolicy. ACCEPTED is the control plane's
word on the version that stands: yes, no (the reason stands below the table), or
"no word", when it has not judged this version (yet).`,
		Example: `  heddle policy get -A
  heddle policy get -n shop accesspolicy/orders -o yaml`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	fl := cmd.Flags()
	fl.StringVarP(&f.namespace, "namespace", "n", "", "whose policies (default the kubeconfig's)")
	fl.BoolVarP(&f.all, "all-namespaces", "A", false, "of all namespaces")
	fl.StringVarP(&f.output, "output", "o", "", "wide, yaml or json")
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"wide", "yaml", "json"}, cobra.ShellCompDirectiveNoFileComp)))
	cmd.ValidArgsFunction = cobra.FixedCompletions([]string{"accesspolicy", "trafficpolicy", "meshconfig"}, cobra.ShellCompDirectiveNoFileComp)
	return cmd
}

func (f *getFlags) run(cmd *cobra.Command, args []string) error {
	switch f.output {
	case "", "wide", "yaml", "json":
	default:
		return fmt.Errorf("--output %s: want wide, yaml or json", f.output)
	}
	kind, name, err := kindAndName(args)
	if err != nil {
		return err
	}
	p, err := f.open(cmd)
	if err != nil {
		return err
	}
	namespace := cmp.Or(f.namespace, p.Namespace())
	if f.all {
		namespace = ""
	}
	list, err := p.Policies(cmd.Context(), namespace)
	if err != nil {
		return err
	}
	named := list
	list = slices.DeleteFunc(slices.Clone(list), func(s *place.Object) bool {
		return kind != "" && s.Ref.Kind != kind || name != "" && s.Ref.Name != name
	})
	if name != "" && len(list) == 0 {
		return f.absent(kind, name, namespace, named)
	}
	slices.SortFunc(list, func(a, b *place.Object) int {
		return cmp.Or(cmp.Compare(a.Ref.Namespace, b.Ref.Namespace), cmp.Compare(slices.Index(place.Kinds, a.Ref.Kind), slices.Index(place.Kinds, b.Ref.Kind)), cmp.Compare(a.Ref.Name, b.Ref.Name))
	})
	out := cmd.OutOrStdout()
	switch f.output {
	case "yaml", "json":
		return f.raw(out, list, name != "")
	}
	if len(list) == 0 {
		where := "in namespace " + namespace
		if namespace == "" {
			where = "anywhere"
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "There are no policies %s.\n", where)
		return nil
	}
	return f.table(out, list)
}

func kindAndName(args []string) (kind, name string, err error) {
	if len(args) == 0 {
		return "", "", nil
	}
	word, name, slash := strings.Cut(args[0], "/")
	if slash && name == "" {
		return "", "", fmt.Errorf("%s: the name is missing", args[0])
	}
	for _, k := range place.Kinds {
		switch strings.ToLower(word) {
		case strings.ToLower(k), strings.ToLower(k) + "s", strings.TrimSuffix(strings.ToLower(k), "y") + "ies":
			return k, name, nil
		}
	}
	return "", "", fmt.Errorf("%q is no kind of ours: say meshconfig, accesspolicy or trafficpolicy, with /NAME for one", word)
}

func (f *getFlags) absent(kind, name, namespace string, have []*place.Object) error {
	var names []string
	for _, s := range have {
		if s.Ref.Kind == kind {
			names = append(names, s.Ref.Name)
		}
	}
	where := ""
	if namespace != "" && kind != "MeshConfig" {
		where = " in namespace " + namespace
	}
	return errors.New("there is no " + kind + " " + name + where + explain.Near(name, names))
}

// raw prints the objects as people wrote them, with their status.
func (f *getFlags) raw(out io.Writer, list []*place.Object, single bool) error {
	var items []any
	for _, s := range list {
		if s.JSON == nil {
			return fmt.Errorf("%s at %s cannot be read: see heddle policy get -o wide", s.Ref, s.Where)
		}
		var o map[string]any
		dec := json.NewDecoder(bytes.NewReader(s.JSON))
		dec.UseNumber()
		if err := dec.Decode(&o); err != nil {
			return fmt.Errorf("read %s: %w", s.Ref, err)
		}
		if _, has := o["status"]; !has && len(s.Conditions) > 0 {
			o["status"] = map[string]any{"conditions": lower(s.Conditions)}
		}
		items = append(items, o)
	}
	var v any = map[string]any{"apiVersion": "v1", "kind": "List", "items": append([]any{}, items...)}
	if single && len(items) == 1 {
		v = items[0]
	}
	text, err := json.MarshalIndent(v, "", "  ")
	if err == nil && f.output == "yaml" {
		text, err = yaml.JSONToYAML(text)
	} else {
		text = append(text, '\n')
	}
	if err == nil {
		_, err = out.Write(text)
	}
	return err
}

func (f *getFlags) table(out io.Writer, list []*place.Object) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	wide := f.output == "wide"
	head := []string{"KIND", "NAME", "FOR", "SAYS", "ACCEPTED", "AGE"}
	if f.all {
		head = append([]string{"NAMESPACE"}, head...)
	}
	if wide {
		head = append(head, "GENERATION", "WHERE", "MESSAGE")
	}
	fmt.Fprintln(w, strings.Join(head, "\t"))
	var below []string
	for _, s := range list {
		target, says := words(s)
		row := []string{s.Ref.Kind, s.Ref.Name, target, says, "no word", f.age(s.Created)}
		message := ""
		if c, ok := s.Accepted(); ok {
			row[4], message = "yes", c.Message
			if c.Status != "True" {
				row[4] = "no: " + c.Reason
				below = append(below, fmt.Sprintf("%s: %s", s.Ref, c.Message))
			}
		}
		if f.all {
			row = append([]string{cmp.Or(s.Ref.Namespace, "-")}, row...)
		}
		if wide {
			row = append(row, strconv.FormatInt(s.Generation, 10), cmp.Or(s.Where, "-"), cmp.Or(message, "-"))
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if wide {
		return nil
	}
	for i, text := range below {
		if i == 0 {
			fmt.Fprintln(out)
		}
		fmt.Fprintln(out, text)
	}
	return nil
}

func (f *getFlags) age(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	d := max(f.now().Sub(t), 0)
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// words say for whom a policy is and what it says.
func words(s *place.Object) (target, says string) {
	var err error
	switch s.Ref.Kind {
	case "MeshConfig":
		target, says, err = meshWords(s.JSON)
	case "AccessPolicy":
		target, says, err = accessWords(s.JSON)
	case "TrafficPolicy":
		target, says, err = trafficWords(s.JSON)
	}
	if err != nil || s.JSON == nil {
		return "?", "cannot be read"
	}
	return target, cmp.Or(says, "nothing")
}

func meshWords(text []byte) (string, string, error) {
	var o v1alpha1.MeshConfig
	if err := json.Unmarshal(text, &o); err != nil {
		return "", "", err
	}
	says := []string{"mtls " + cmp.Or(string(o.Spec.MTLS), string(v1alpha1.MTLSPermissive))}
	if o.Spec.TrustDomain != "" {
		says = append(says, "trust domain "+o.Spec.TrustDomain)
	}
	if n := len(o.Spec.ExcludedPorts); n > 0 {
		says = append(says, count(n, "excluded port"))
	}
	if o.Spec.TraceSampling > 0 {
		says = append(says, fmt.Sprintf("traces %g%%", o.Spec.TraceSampling*100))
	}
	if o.Spec.AccessLog {
		says = append(says, "access log")
	}
	return "the mesh", strings.Join(says, ", "), nil
}

func accessWords(text []byte) (string, string, error) {
	var o v1alpha1.AccessPolicy
	if err := json.Unmarshal(text, &o); err != nil {
		return "", "", err
	}
	var says []string
	if m := o.Spec.MTLS; m != nil {
		word := "mtls " + string(m.Mode)
		if len(m.Ports) > 0 {
			word += fmt.Sprintf(" on %s", numbers(m.Ports))
		}
		says = append(says, word)
	}
	n := map[v1alpha1.AccessAction]int{}
	for _, r := range o.Spec.Rules {
		n[r.Action]++
	}
	for _, a := range []v1alpha1.AccessAction{v1alpha1.Allow, v1alpha1.Deny, v1alpha1.Audit} {
		if n[a] > 0 {
			says = append(says, fmt.Sprintf("%d %s", n[a], a))
		}
	}
	return selector(o.Spec.Selector), strings.Join(says, ", "), nil
}

func selector(m map[string]string) string {
	if len(m) == 0 {
		return "all pods"
	}
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, k+"="+m[k])
	}
	return "pods " + strings.Join(out, ",")
}

func numbers(list []uint16) string {
	var out []string
	for _, n := range list {
		out = append(out, strconv.Itoa(int(n)))
	}
	return strings.Join(out, ",")
}

func trafficWords(text []byte) (string, string, error) {
	var o v1alpha1.TrafficPolicy
	if err := json.Unmarshal(text, &o); err != nil {
		return "", "", err
	}
	var targets, says []string
	for _, t := range o.Spec.TargetRefs {
		name := t.Name
		if t.Port != nil {
			name += ":" + strconv.Itoa(int(*t.Port))
		}
		targets = append(targets, name)
	}
	if r := o.Spec.Retry; r != nil {
		says = append(says, fmt.Sprintf("retry %d", r.Attempts))
	}
	if t := o.Spec.Timeouts; t != nil {
		for _, x := range []struct {
			name string
			d    *v1alpha1.Duration
		}{{"timeout", t.Request}, {"connect", t.Connect}, {"idle", t.Idle}} {
			if x.d != nil {
				says = append(says, x.name+" "+x.d.Duration.String())
			}
		}
	}
	if o.Spec.CircuitBreaker != nil {
		says = append(says, "breaker")
	}
	if o.Spec.OutlierEjection != nil {
		says = append(says, "ejection")
	}
	return "Service " + some(targets), strings.Join(says, ", "), nil
}

// sameSpec compares what two objects say.
func sameSpec(a, b []byte) bool {
	spec := func(text []byte) []byte {
		var o struct {
			Spec any `json:"spec"`
		}
		if json.Unmarshal(text, &o) != nil {
			return nil
		}
		out, err := json.Marshal(o.Spec)
		if err != nil {
			return nil
		}
		return out
	}
	x, y := spec(a), spec(b)
	return x != nil && string(x) == string(y)
}

// lower gives conditions the names that they have in an object.
func lower(list []source.Condition) []map[string]any {
	var out []map[string]any
	for _, c := range list {
		out = append(out, map[string]any{"type": c.Type, "status": c.Status, "reason": c.Reason, "message": c.Message, "observedGeneration": c.ObservedGeneration})
	}
	return out
}
