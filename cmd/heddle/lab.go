package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/heddle-mesh/heddle/internal/lab"
	"github.com/heddle-mesh/heddle/internal/lab/cluster"
	"github.com/heddle-mesh/heddle/internal/lab/fabric"
)

// labFlags name a lab.
type labFlags struct {
	name   string
	runDir string
}

func newLab() *cobra.Command {
	f := &labFlags{}
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Run manifests on this machine: pods as processes in namespaces of their own",
		Long: `A lab runs ordinary Kubernetes manifests on one Linux machine, as root, without
images: a container's command is a program of this machine, and the name of its
image is ignored. It has nodes, pods, Services and DNS, and no route out.`,
		Args: noSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.HasSubCommands() {
				return nil // it only prints help
			}
			return needRoot(os.Geteuid())
		},
	}
	cmd.PersistentFlags().StringVar(&f.name, "name", "dev", "of the lab; several stand side by side")
	cmd.PersistentFlags().StringVar(&f.runDir, "run-dir", fabric.DefaultRunDir, "where labs keep their state")
	cmd.AddCommand(newLabUp(f), newLabDown(f), newLabExec(f), newLabLogs(f), newLabStatus(f), newLabCapture(f))
	return cmd
}

// noSuchCommand says what there is; without it cobra would print help and
// succeed.
func noSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		names = append(names, c.Name())
	}
	return fmt.Errorf("there is no %s %s; there are %s", cmd.CommandPath(), args[0], strings.Join(names, ", "))
}

func needRoot(euid int) error {
	if euid != 0 {
		return errors.New("the lab makes namespaces: run as root")
	}
	return nil
}

func newLabDown(f *labFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "End a lab and take everything of it away, also after its process was killed",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := lab.Down(cmd.Context(), f.runDir, f.name); err != nil {
				if errors.Is(err, lab.ErrNotUp) {
					fmt.Fprintf(cmd.OutOrStdout(), "There is no lab %s.\n", f.name)
					return nil
				}
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "Lab %s is down; nothing of it is left.\n", f.name)
			return nil
		},
	}
}

func newLabStatus(f *labFlags) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show nodes, pods, Services and bad manifests",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := lab.ReadStatus(f.runDir, f.name)
			if err != nil {
				return err
			}
			switch output {
			case "json":
				e := json.NewEncoder(cmd.OutOrStdout())
				e.SetIndent("", "  ")
				return e.Encode(s)
			case "":
				return printStatus(cmd.OutOrStdout(), s)
			}
			return fmt.Errorf("--output %q: want json", output)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json: all of it, for programs")
	return cmd
}

// printStatus writes a table a section.
func printStatus(out io.Writer, s *lab.Status) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tZONE\tADDRESSES\tPOD RANGES\tPODS")
	for _, n := range s.Nodes {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\n", n.Name, dash(n.Zone), joinAny(n.Addresses), joinAny(n.PodCIDRs), n.Pods)
	}
	fmt.Fprintln(w, "\nPOD\tREADY\tPHASE\tRESTARTS\tNODE\tIPS\tMESH\t")
	for _, p := range s.Pods {
		phase := p.Phase
		if p.Terminating {
			phase = "Terminating"
		}
		meshed := "no"
		if p.Meshed {
			meshed = "yes"
		}
		fmt.Fprintf(w, "%s/%s\t%d/%d\t%s\t%d\t%s\t%s\t%s\t%s\n", p.Namespace, p.Name, p.ReadyCount, len(p.Containers), phase,
			p.Restarts, dash(p.Node), dash(strings.Join(p.IPs, ",")), meshed, p.Message)
	}
	if len(s.Services) > 0 {
		fmt.Fprintln(w, "\nSERVICE\tTYPE\tCLUSTER IPS\tENDPOINTS READY")
	}
	for _, v := range s.Services {
		fmt.Fprintf(w, "%s/%s\t%s\t%s\t%d of %d\n", v.Namespace, v.Name, v.Type, dash(strings.Join(v.ClusterIPs, ",")), v.Ready, v.Total)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for i, p := range s.Problems {
		if i == 0 {
			fmt.Fprintln(out, "\nBAD MANIFESTS")
		}
		fmt.Fprintln(out, p)
	}
	return nil
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func joinAny[T fmt.Stringer](list []T) string {
	var out []string
	for _, v := range list {
		out = append(out, v.String())
	}
	return strings.Join(out, ",")
}

// findPod finds the pod that a person means: its name, namespace/name, or the
// name of a Deployment or Job, which stands for its first ready pod.
func findPod(s *lab.Status, namespace, name string) (*cluster.PodStatus, error) {
	if ns, n, ok := strings.Cut(name, "/"); ok {
		namespace, name = ns, n
	}
	var exact, owned []*cluster.PodStatus
	for i := range s.Pods {
		p := &s.Pods[i]
		if namespace != "" && p.Namespace != namespace {
			continue
		}
		switch {
		case p.Name == name:
			exact = append(exact, p)
		case p.Owner.Name == name && (len(owned) == 0 || p.Ready && !owned[0].Ready && p.Namespace == owned[0].Namespace):
			owned = []*cluster.PodStatus{p}
		case p.Owner.Name == name && p.Namespace != owned[0].Namespace:
			owned = append(owned, p)
		}
	}
	for _, found := range [][]*cluster.PodStatus{exact, owned} {
		if len(found) == 1 {
			return found[0], nil
		}
		if len(found) > 1 {
			return nil, fmt.Errorf("%s is in the namespaces %s and %s: say which with -n", name, found[0].Namespace, found[1].Namespace)
		}
	}
	return nil, fmt.Errorf("there is no pod %s; heddle lab status lists them", name)
}

// captureFlags say where packets are taken.
type captureFlags struct {
	*labFlags
	node, pod, namespace string
	backbone             bool
}

// place finds the network namespace and the interface; empty: the bridge's.
func (c *captureFlags) place() (netns, ifc string, err error) {
	fab, err := fabric.Open(c.runDir, c.name)
	if err != nil {
		return "", "", err
	}
	switch {
	case c.backbone && c.node == "" && c.pod == "":
		return fab.BackboneNetNS(), "", nil
	case c.node != "" && c.pod == "" && !c.backbone:
		var names []string
		for _, n := range fab.Config().Nodes {
			if n.Name == c.node {
				return fab.NodeNetNS(c.node), "", nil
			}
			names = append(names, n.Name)
		}
		return "", "", fmt.Errorf("lab %s has no node %s; it has %s", c.name, c.node, strings.Join(names, ", "))
	case c.pod != "" && c.node == "" && !c.backbone:
		p, err := c.labFlags.pod(c.namespace, c.pod)
		if err != nil {
			return "", "", err
		}
		netns := fab.PodNetNS(p.UID)
		if _, err := os.Stat(netns); err != nil {
			return "", "", fmt.Errorf("pod %s/%s has no network of its own: it does not run yet, or its hostNetwork is that of node %s (--node)", p.Namespace, p.Name, dash(p.Node))
		}
		return netns, "eth0", nil
	}
	return "", "", errors.New("say one of --node, --backbone and --pod")
}

func newLabCapture(f *labFlags) *cobra.Command {
	c := &captureFlags{labFlags: f}
	var file string
	var duration time.Duration
	cmd := &cobra.Command{
		Use:   "capture (--node NODE | --backbone | --pod POD) -o FILE",
		Short: "Write the packets of a node's bridge, of the backbone or of a pod to a pcap file",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg := fabric.CaptureConfig{File: file, OnStart: func() { fmt.Fprintln(cmd.ErrOrStderr(), "Capturing; end with Ctrl-C.") }}
			var err error
			if cfg.NetNS, cfg.Interface, err = c.place(); err != nil {
				return err
			}
			ctx := cmd.Context()
			if duration > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, duration)
				defer cancel()
			}
			stats, err := fabric.Capture(ctx, cfg)
			if err != nil && ctx.Err() == nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "%d packets seen, %d written to %s (%d bytes), %d missed.\n",
				stats.Packets, stats.Written, file, stats.Bytes, stats.Dropped)
			return nil
		},
	}
	cmd.Flags().StringVar(&c.node, "node", "", "whose bridge, to which its pods are joined")
	cmd.Flags().BoolVar(&c.backbone, "backbone", false, "between the nodes")
	cmd.Flags().StringVar(&c.pod, "pod", "", "whose interface")
	cmd.Flags().StringVarP(&c.namespace, "namespace", "n", "", "of the pod")
	cmd.Flags().StringVarP(&file, "output", "o", "", "pcap file")
	cmd.Flags().DurationVar(&duration, "duration", 0, "how long; without: until interrupted")
	cobra.CheckErr(cmd.MarkFlagRequired("output"))
	return cmd
}
