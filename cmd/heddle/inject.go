package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
	"github.com/heddle-mesh/heddle/injector/patch"
	"github.com/heddle-mesh/heddle/internal/run"
)

// maxManifest bounds what is read at once: a cluster's whole export is less.
const maxManifest = 64 << 20

// edit changes one decoded object and says what became of it.
type edit func(obj map[string]any) ([]patch.Edited, error)

func newInject() *cobra.Command {
	var files []string
	var namespace, bundle string
	cfg := patch.Config{Version: run.Version}
	cmd := &cobra.Command{
		Use:   "inject -f FILE",
		Short: "Put the sidecar into the pods of manifests",
		Long: `Reads manifests (- is standard input), puts the sidecar into each pod and pod
template, and prints all documents; those that are not changed are printed as
they are. What was done, and why not, goes to standard error. Pods that say
heddle.dev/inject: disabled are left alone.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			roots, err := os.ReadFile(bundle)
			if err != nil {
				return fmt.Errorf("read --trust-bundle: %w", err)
			}
			cfg.TrustBundle = string(roots)
			if err := cfg.Validate(); err != nil {
				return err
			}
			// Who calls us asks for injection, as a labelled namespace does.
			ns := patch.Namespace{Name: namespace, Labels: map[string]string{v1alpha1.InjectKey: "enabled"}}
			return editFiles(cmd, files, "injected", func(obj map[string]any) ([]patch.Edited, error) {
				return patch.Workload(obj, ns, cfg)
			})
		},
	}
	flags := cmd.Flags()
	fileFlag(cmd, &files)
	flags.StringVarP(&namespace, "namespace", "n", "default", "of objects that name none")
	flags.StringVar(&bundle, "trust-bundle", "", "PEM file with the mesh's roots")
	flags.StringVar(&cfg.ControlPlane, "control-plane", "heddle-controlplane.heddle-system.svc:15010", "host:port that sidecars dial")
	flags.StringVar(&cfg.TrustDomain, "trust-domain", "cluster.local", "of all identities")
	flags.StringVar(&cfg.SidecarImage, "sidecar-image", "heddle-sidecar:"+run.Version, "of the containers added")
	flags.StringVar(&cfg.SidecarCommand, "sidecar-command", "/heddle-sidecar", "path of the program in that image")
	flags.BoolVar(&cfg.Classic, "classic", false, "ordinary containers in place of native sidecars")
	if err := cmd.MarkFlagRequired("trust-bundle"); err != nil {
		panic(err) // the flag's name is misspelt above
	}
	return cmd
}

func newUninject() *cobra.Command {
	var files []string
	cmd := &cobra.Command{
		Use:   "uninject -f FILE",
		Short: "Take the sidecar out of the pods of manifests",
		Long: `Reads manifests (- is standard input), takes out exactly what "heddle inject"
or the webhook put in, and prints all documents.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return editFiles(cmd, files, "uninjected", patch.UninjectWorkload)
		},
	}
	fileFlag(cmd, &files)
	return cmd
}

func fileFlag(cmd *cobra.Command, files *[]string) {
	cmd.Flags().StringArrayVarP(files, "file", "f", nil, "file of manifests, - for standard input; may be repeated")
	if err := cmd.MarkFlagRequired("file"); err != nil {
		panic(err) // the flag's name is misspelt above
	}
}

// editFiles runs every file through f; a bad document keeps nobody else from
// being printed.
func editFiles(cmd *cobra.Command, files []string, verb string, f edit) error {
	e := &editor{out: cmd.OutOrStdout(), notes: cmd.ErrOrStderr(), verb: verb, edit: f}
	for _, name := range files {
		text, err := readManifest(cmd.InOrStdin(), name)
		if err != nil {
			return err
		}
		if err := e.stream(name, text); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	fmt.Fprintf(e.notes, "%d %s, %d left as they were, %d bad\n", e.changed, verb, e.left, e.bad)
	if e.bad > 0 {
		return fmt.Errorf("%d of the documents or objects could not be read or must be mended", e.bad)
	}
	return nil
}

func readManifest(stdin io.Reader, name string) (string, error) {
	in := stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return "", fmt.Errorf("read manifests: %w", err)
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, maxManifest+1))
	if err == nil && len(b) > maxManifest {
		err = errors.New("more than 64 MiB")
	}
	if err != nil {
		return "", fmt.Errorf("read manifests from %s: %w", name, err)
	}
	return string(b), nil
}

// editor goes through streams of documents.
type editor struct {
	out, notes         io.Writer
	verb               string
	edit               edit
	changed, left, bad int
	open               bool // what was printed last has no marker or newline at its end
}

func (e *editor) stream(name, text string) error {
	for i, d := range splitDocuments(text) {
		if i == 0 && e.open && (len(d.text) < 3 || d.text[:3] != "---") {
			if _, err := io.WriteString(e.out, "---\n"); err != nil {
				return err
			}
		}
		if err := e.document(name, d); err != nil {
			return err
		}
		e.open = true
	}
	return nil
}

// document prints one document, changed or as it was.
func (e *editor) document(name string, d document) error {
	if d.number > 0 {
		where := fmt.Sprintf("%s: document %d (line %d)", name, d.number, d.line)
		if obj := e.object(where, d); obj != nil {
			return d.write(e.out, obj)
		}
	}
	text := d.text
	if text[len(text)-1] != '\n' {
		text += "\n" // another file may follow
	}
	_, err := io.WriteString(e.out, text)
	return err
}

// object gives the changed object; nil: print the document as it was.
func (e *editor) object(where string, d document) map[string]any {
	obj, err := d.object()
	if err != nil {
		e.bad++
		fmt.Fprintf(e.notes, "%s: %v\n", where, err)
		return nil
	}
	edited, err := e.edit(obj)
	if err != nil {
		e.bad++
		fmt.Fprintf(e.notes, "%s: %v\n", where, err)
	}
	changed := false
	for _, r := range edited {
		e.note(where, r)
		changed = changed || len(r.Patch) > 0
	}
	if err == nil && len(edited) == 0 {
		e.left++ // of a kind that holds no pods
	}
	if !changed {
		return nil
	}
	return obj
}

// note says what became of one object.
func (e *editor) note(where string, r patch.Edited) {
	switch {
	case len(r.Patch) > 0:
		e.changed++
		fmt.Fprintf(e.notes, "%s: %s: %s\n", where, r.Object, e.verb)
	case r.Reason == patch.BadValue || r.Deny():
		e.bad++
		fmt.Fprintf(e.notes, "%s: %v\n", where, r.Err)
	case r.Err != nil:
		e.left++
		fmt.Fprintf(e.notes, "%s: not %s: %v\n", where, e.verb, r.Err)
	default:
		e.left++
		fmt.Fprintf(e.notes, "%s: %s: not %s: %s\n", where, r.Object, e.verb, r.Reason)
	}
	for _, w := range r.Warnings {
		fmt.Fprintf(e.notes, "%s: warning: %s\n", where, w)
	}
}
