// Package policy is "heddle policy": it checks policies as the control plane
// does before it sends them, shows them with what became of them, and explains
// who may call whom, by the control plane's own compiler and the sidecars' own
// decision. It decides nothing itself. Policies live in a cluster, in a folder
// of manifests, or in a lab. cmd/heddle calls New.
package policy

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/heddle-mesh/heddle/cmd/heddle/cluster"
	"github.com/heddle-mesh/heddle/cmd/heddle/policy/place"
	"github.com/heddle-mesh/heddle/internal/lab/fabric"
)

// Flags gives a command the flags that say which cluster; what it returns
// connects.
type Flags func(*cobra.Command) func(*cobra.Command) (*cluster.Cluster, error)

// options of all commands.
type options struct {
	source  string
	runDir  string
	connect func(*cobra.Command) (*cluster.Cluster, error)
}

// New gives the command.
func New(flags Flags) *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Apply, show and explain policies",
		Long: `Policies are MeshConfig, AccessPolicy and TrafficPolicy of heddle.dev/v1alpha1.
They stand in a cluster, in a folder of manifests (--source=files:DIR, as the
control plane reads it without Kubernetes), or in a lab (--source=lab:NAME).`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return fmt.Errorf("there is no heddle policy %s; there are apply, explain, get", args[0])
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	pf := cmd.PersistentFlags()
	pf.StringVar(&o.source, "source", "kube", "where policies stand: `kube`, files:DIR or lab:NAME")
	pf.StringVar(&o.runDir, "run-dir", fabric.DefaultRunDir, "where labs keep their state")
	cobra.CheckErr(pf.MarkHidden("run-dir"))
	o.connect = flags(cmd)
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("source", cobra.FixedCompletions([]string{"kube", "files:", "lab:"}, cobra.ShellCompDirectiveNoSpace)))
	cmd.AddCommand(newApply(o), newGet(o), newExplain(o))
	return cmd
}

// open finds the place that --source names.
func (o *options) open(cmd *cobra.Command) (place.Place, error) {
	kind, name, _ := strings.Cut(o.source, ":")
	switch {
	case o.source == "kube":
		c, err := o.connect(cmd)
		if err != nil {
			return nil, err
		}
		return place.Cluster(c, cmd.Flag("kubeconfig").Value.String(), cmd.Flag("context").Value.String()), nil
	case kind == "files" && name != "":
		return place.Folder(name)
	case kind == "lab" && name != "":
		return place.Lab(o.runDir, name)
	}
	return nil, fmt.Errorf("--source=%s: want kube, files:DIR or lab:NAME", o.source)
}
