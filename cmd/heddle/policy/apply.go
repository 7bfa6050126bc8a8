package policy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/heddle-mesh/heddle/cmd/heddle/policy/place"
	"github.com/heddle-mesh/heddle/internal/source"
)

const (
	// defaultWait is for the control plane's word: it comes within a second of a
	// change, and a few more where a new leader begins.
	defaultWait = 10 * time.Second
	// look is how often we look for it.
	look = 100 * time.Millisecond
)

// applyFlags of "apply".
type applyFlags struct {
	*options
	files     []string
	namespace string
	dryRun    bool
	wait      time.Duration
}

func newApply(o *options) *cobra.Command {
	f := &applyFlags{options: o}
	cmd := &cobra.Command{
		Use:   "apply -f FILE|FOLDER|-",
		Short: "Check policies as the control plane does, put them in place, and wait for its word",
		Long: `Reads policies, checks all of them by the control plane's own code, and sends
nothing if one has a mistake. Then each is put in place (by server-side apply;
in a folder its document is replaced, or a file of its own is made), and the
command waits until the control plane says that this version is in force.

It ends with 1 if anything is wrong, also if no word came within --wait: what was
put in place stays.`,
		Example: `  heddle policy apply -f policies/
  heddle policy apply -f - --dry-run < policy.yaml
  heddle policy apply -f policy.yaml --source=files:/etc/heddle/world`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	fl := cmd.Flags()
	fl.StringArrayVarP(&f.files, "file", "f", nil, "file or folder of policies, - for standard input; may be repeated")
	fl.StringVarP(&f.namespace, "namespace", "n", "", "of objects that name none; others may not name another (default the kubeconfig's)")
	fl.BoolVar(&f.dryRun, "dry-run", false, "check, and say what would be done")
	fl.DurationVar(&f.wait, "wait", defaultWait, "for the control plane's word; 0: not at all")
	cobra.CheckErr(cmd.MarkFlagRequired("file"))
	cobra.CheckErr(cmd.MarkFlagFilename("file", "yaml", "yml", "json"))
	return cmd
}

func (f *applyFlags) run(cmd *cobra.Command) error {
	p, err := f.open(cmd)
	if err != nil {
		return err
	}
	in := namespaced{p.Namespace(), false}
	if f.namespace != "" {
		in = namespaced{f.namespace, true}
	}
	req, err := read(cmd.InOrStdin(), f.files, in)
	if err != nil {
		return err
	}
	notes := cmd.ErrOrStderr()
	if len(req.problems) == 0 {
		req.problems = check(req)
	}
	if n := len(req.problems); n > 0 {
		for _, problem := range req.problems {
			fmt.Fprintln(notes, problem)
		}
		return fmt.Errorf("%s in what is to be applied; nothing was sent", count(n, "mistake"))
	}
	if n := len(req.others); n > 0 {
		fmt.Fprintf(notes, "passed over, as they are no policies: %s\n", some(req.others))
	}
	if len(req.objects) == 0 {
		return fmt.Errorf("there is no policy in %s", strings.Join(f.files, ", "))
	}
	a := &applying{Place: p, out: cmd.OutOrStdout(), notes: notes, wait: f.wait}
	if f.dryRun {
		return a.dry(cmd.Context(), req.objects)
	}
	return a.all(cmd.Context(), req.objects)
}

// applying is one run of "apply" after its checks.
type applying struct {
	place.Place
	out, notes io.Writer
	wait       time.Duration
}

// dry says what would be done.
func (a *applying) dry(ctx context.Context, list []*given) error {
	for _, g := range list {
		s, err := a.One(ctx, g.ref)
		switch {
		case err != nil:
			return err
		case s == nil:
			fmt.Fprintf(a.out, "%s: good, would be created\n", g.ref)
		case sameSpec(s.JSON, g.json):
			fmt.Fprintf(a.out, "%s: good, says the same already\n", g.ref)
		default:
			fmt.Fprintf(a.out, "%s: good, would be changed\n", g.ref)
		}
	}
	return nil
}

// all puts every object in place, then waits for all of them.
func (a *applying) all(ctx context.Context, list []*given) error {
	type put struct {
		ref source.Ref
		place.Done
	}
	var done []put
	failed := 0
	began := time.Now()
	for _, g := range list {
		did, err := a.Put(ctx, g.ref, g.json)
		if err != nil {
			failed++
			fmt.Fprintf(a.notes, "%s: %v\n", g.ref, err)
			continue
		}
		done = append(done, put{g.ref, did})
		fmt.Fprintf(a.out, "%s %s\n", g.ref, did.What)
	}
	// Each has its own time, as looking at hundreds takes some; once the control
	// plane was silent for that long, the others get a look each.
	wait := a.wait
	for _, p := range done {
		if wait == 0 {
			break
		}
		one, cancel := context.WithTimeoutCause(ctx, wait, errNoWord)
		err := a.await(one, p.ref, p.Generation, began)
		cancel()
		if err != nil {
			failed++
			fmt.Fprintf(a.notes, "%s: %v\n", p.ref, err)
		}
		if errors.Is(err, errNoWord) {
			wait = min(wait, look)
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %s not in force", failed, count(len(list), "object"))
	}
	return nil
}

var errNoWord = errors.New("no word from the control plane yet (is it up? see heddle policy get; --wait gives it longer)")

// await waits until the control plane has judged the object, in the generation
// that was put; 0: as it stands.
func (a *applying) await(ctx context.Context, ref source.Ref, generation int64, began time.Time) error {
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		s, err := a.One(ctx, ref)
		if err != nil && ctx.Err() == nil {
			return err
		}
		if s == nil && err == nil && generation == 0 {
			return errors.New("is not there any more: somebody took it away")
		}
		if s != nil && (generation == 0 || s.Generation == generation) {
			if c, ok := s.Accepted(); ok {
				if c.Status != "True" {
					return fmt.Errorf("put in place, but not accepted: %s", c.Message)
				}
				fmt.Fprintf(a.out, "%s accepted after %v: %s\n", ref, time.Since(began).Round(10*time.Millisecond), c.Message)
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("put in place, but %w", context.Cause(ctx))
		case <-tick.C:
		}
	}
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// listed bounds what one line lists.
const listed = 5

func some(list []string) string {
	if n := len(list) - listed; n > 0 {
		return strings.Join(list[:listed], ", ") + fmt.Sprintf(" and %d more", n)
	}
	return strings.Join(list, ", ")
}
