//go:build !nokube

package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/heddle-mesh/heddle/cmd/heddle/install"
	"github.com/heddle-mesh/heddle/internal/run"
)

// installTime bounds an installation: images must come from a registry.
const installTime = 5 * time.Minute

// release names the images; a program that was not built by "make" has none
// and leaves it to the chart.
func release() string {
	if run.Version == "devel" {
		return ""
	}
	return run.Version
}

// valueFlags are Helm's own.
func valueFlags(cmd *cobra.Command) *install.Values {
	v := &install.Values{}
	flags := cmd.Flags()
	flags.StringSliceVarP(&v.Files, "values", "f", nil, "YAML file of values; may be repeated")
	flags.StringArrayVar(&v.Set, "set", nil, "value, path.to.key=value; may be repeated")
	flags.StringArrayVar(&v.SetString, "set-string", nil, "the same, always as a string")
	return v
}

func newInstall() *cobra.Command {
	var o install.Options
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Put Heddle into a cluster, or bring it to this version",
		Long: `Applies the chart that this program carries: kinds first, then control plane,
injector and node agent, and waits until all of them are ready. What an older
version, or other values, made and this one does not is deleted. Running it
again changes nothing. Values are not remembered: give them each time.`,
		Args: cobra.NoArgs,
	}
	connect, values := clusterFlags(cmd), valueFlags(cmd)
	cmd.Flags().DurationVar(&o.Timeout, "timeout", installTime, "until everything must be ready")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := connect(cmd)
		if err != nil {
			return err
		}
		o.Values, o.Release, o.Out = *values, release(), cmd.OutOrStdout()
		if err := install.Install(cmd.Context(), c, o); err != nil {
			return err
		}
		fmt.Fprint(o.Out, `Heddle is installed. Next, for a namespace of yours:
  kubectl label namespace NAMESPACE heddle.dev/inject=enabled
  kubectl -n NAMESPACE rollout restart deployment
`)
		return nil
	}
	return cmd
}

func newUninstall() *cobra.Command {
	var o install.Options
	var r install.Removal
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Take Heddle out of a cluster",
		Long: `Deletes the webhook, cleans the nodes of their rules for Services, and deletes
all the rest, policies and the certificate authority included. Pods that have a
sidecar keep it until they are restarted; it says which.`,
		Args: cobra.NoArgs,
	}
	connect := clusterFlags(cmd)
	cmd.Flags().DurationVar(&o.Timeout, "timeout", installTime, "until everything must be gone")
	cmd.Flags().BoolVar(&r.KeepCRDs, "keep-crds", false, "keep our kinds, and with them all policies and MeshConfig")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := connect(cmd)
		if err != nil {
			return err
		}
		o.Out = cmd.OutOrStdout()
		if err := install.Uninstall(cmd.Context(), c, o, r); err != nil {
			return err
		}
		fmt.Fprintln(o.Out, "Heddle is gone.")
		return nil
	}
	return cmd
}

func newRender() *cobra.Command {
	var kube string
	cmd := &cobra.Command{
		Use:   "render",
		Short: "Print the manifests that install would apply",
		Long: `Renders the chart that this program carries, as "helm template --include-crds"
does, without a cluster: what "install" finds out there (addresses of the API
server, a kube-proxy) must be given by --set.`,
		Args: cobra.NoArgs,
	}
	values := valueFlags(cmd)
	cmd.Flags().StringVar(&kube, "kube-version", "v1.36.0", "version of Kubernetes to render for")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		manifests, err := install.Render(*values, kube, release())
		if err != nil {
			return err
		}
		for _, m := range manifests {
			if _, err := fmt.Fprint(cmd.OutOrStdout(), m.Document()); err != nil {
				return err
			}
		}
		return nil
	}
	return cmd
}
