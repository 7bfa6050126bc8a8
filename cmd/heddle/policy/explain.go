package policy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/heddle-mesh/heddle/cmd/heddle/policy/explain"
	"github.com/heddle-mesh/heddle/cmd/heddle/policy/place"
	"github.com/heddle-mesh/heddle/internal/run"
	"github.com/heddle-mesh/heddle/internal/source"
)

const (
	// refused is the exit code where somebody is refused: not an error.
	refused = 3
	// readWait bounds the reading of a whole cluster.
	readWait = 30 * time.Second
)

// explainFlags of "explain".
type explainFlags struct {
	*options
	from, to, namespace string
	address             string
	port                uint16
	plaintext           bool
	trustDomain         string
	output              string
}

func newExplain(o *options) *cobra.Command {
	f := &explainFlags{options: o}
	cmd := &cobra.Command{
		Use:   "explain --from WHO --to WHOM",
		Short: "Say whether somebody may call somebody, by which rule, and why others do not count",
		Long: `Reads the world, compiles it as the control plane does, and decides as a sidecar
does. Nothing is sent to anybody.

WHO is a service account (NAMESPACE/ACCOUNT), a SPIFFE ID, or an IP address: a
pod's address means the pod. WHOM is a pod (NAMESPACE/POD), all pods of a
Deployment (NAMESPACE/deploy/NAME) or all endpoints of a Service
(NAMESPACE/svc/NAME), of which the TrafficPolicy in force is shown too.

It ends with 0 if all of it is allowed, 3 if any of it is refused (also where only
probes of the node pass), and 1 if it cannot be said.`,
		Example: `  heddle policy explain --from shop/web --to shop/svc/orders
  heddle policy explain --from 10.244.1.7 --to shop/orders-0 --port 8080
  heddle policy explain --from shop/web --to shop/deploy/stock --plaintext`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	fl := cmd.Flags()
	fl.StringVar(&f.from, "from", "", "who calls: `NAMESPACE/ACCOUNT`, spiffe://ID or an IP address")
	fl.StringVar(&f.to, "to", "", "who is called: `NAMESPACE/POD`, NAMESPACE/deploy/NAME or NAMESPACE/svc/NAME")
	fl.StringVarP(&f.namespace, "namespace", "n", "", "of names that say none (default the kubeconfig's)")
	fl.StringVar(&f.address, "address", "", "the caller's IP address, for rules with cidrs (default those of its pods)")
	fl.Uint16Var(&f.port, "port", 0, "the pod's port, or the Service's; default all that it declares")
	fl.BoolVar(&f.plaintext, "plaintext", false, "the caller has no sidecar and proves no identity")
	fl.StringVar(&f.trustDomain, "trust-domain", "cluster.local", "of all identities, where no MeshConfig says it")
	fl.StringVarP(&f.output, "output", "o", "", "json: all of it, for programs")
	cobra.CheckErr(cmd.MarkFlagRequired("from"))
	cobra.CheckErr(cmd.MarkFlagRequired("to"))
	return cmd
}

func (f *explainFlags) run(cmd *cobra.Command) error {
	if f.output != "" && f.output != "json" {
		return fmt.Errorf("--output %s: want json", f.output)
	}
	p, err := f.open(cmd)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), readWait)
	defer cancel()
	snap, err := p.World(ctx)
	if err != nil {
		return err
	}
	where, err := places(ctx, p)
	if err != nil {
		return err
	}
	e, err := explain.New(snap, f.trustDomain, where)
	if err != nil {
		return err
	}
	if f.namespace == "" {
		f.namespace = p.Namespace()
	}
	r, err := e.Explain(explain.Question{From: f.from, To: f.to, Namespace: f.namespace, Address: f.address, Port: f.port, Plaintext: f.plaintext})
	if err != nil {
		return err
	}
	if err := printReport(cmd.OutOrStdout(), r, f.output == "json"); err != nil {
		return err
	}
	if r.Verdict != explain.Allowed {
		return run.Exit(refused)
	}
	return nil
}

// places tells where each object stands in its folder.
func places(ctx context.Context, p place.Place) (map[source.Ref]string, error) {
	list, err := p.Policies(ctx, "")
	out := map[source.Ref]string{}
	for _, s := range list {
		out[s.Ref] = s.Where
	}
	return out, err
}

func printReport(out io.Writer, r *explain.Report, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	_, err := io.WriteString(out, r.Text())
	return err
}
