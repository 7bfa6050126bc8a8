package files

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/internal/source"
)

func ns(name string) string {
	return "apiVersion: v1\nkind: Namespace\nmetadata: {name: " + name + "}\n"
}

func policy(name, selector, action string) string {
	return "apiVersion: heddle.dev/v1alpha1\nkind: AccessPolicy\nmetadata: {name: " + name + ", namespace: shop}\nspec: {selector: {app: " + selector + "}, rules: [{action: " + action + "}]}\n"
}

func mesh(mode string) string {
	return "apiVersion: heddle.dev/v1alpha1\nkind: MeshConfig\nmetadata: {name: default}\nspec: {mtls: " + mode + "}\n"
}

// door is a running Files over a folder of the test.
type door struct {
	*Files
	t   *testing.T
	dir string
}

func start(t *testing.T, dir string) *door {
	t.Helper()
	f := New(Config{Dir: dir})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	d := &door{f, t, dir}
	d.until("the first snapshot", func(s *source.Snapshot) bool { return true })
	return d
}

// until waits for a snapshot.
func (d *door) until(what string, ok func(*source.Snapshot) bool) *source.Snapshot {
	d.t.Helper()
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	for {
		if s := d.Snapshot(); s != nil && ok(s) {
			return s
		}
		select {
		case <-d.Changed():
		case <-deadline.C:
			d.t.Fatalf("no %s; have %s", what, show(d.Snapshot()))
		}
	}
}

// steady watches for some time that a condition holds in every snapshot.
func (d *door) steady(for_ time.Duration, what string, ok func(*source.Snapshot) bool) {
	d.t.Helper()
	end := time.NewTimer(for_)
	defer end.Stop()
	for {
		if s := d.Snapshot(); !ok(s) {
			d.t.Fatalf("not %s: %s", what, show(s))
		}
		select {
		case <-d.Changed():
		case <-end.C:
			return
		}
	}
}

func show(s *source.Snapshot) string {
	if s == nil {
		return "nothing"
	}
	return fmt.Sprintf("namespaces %v pods %v policies %v broken %v problems %v", keysOf(s.Namespaces), keysOf(s.Pods), keysOf(s.AccessPolicies), s.BrokenPolicies, s.Problems)
}

func keysOf[K comparable, V any](m map[K]V) (out []string) {
	for k := range m {
		out = append(out, fmt.Sprint(k))
	}
	return out
}

func has(name string) func(*source.Snapshot) bool {
	return func(s *source.Snapshot) bool { return s.Namespaces[name] != nil }
}

func not(f func(*source.Snapshot) bool) func(*source.Snapshot) bool {
	return func(s *source.Snapshot) bool { return !f(s) }
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// put writes beside and renames, as careful writers do.
func put(t *testing.T, path, text string) {
	t.Helper()
	tmp := filepath.Join(filepath.Dir(path), ".tmp-"+filepath.Base(path))
	write(t, tmp, text)
	if err := os.Rename(tmp, path); err != nil {
		t.Fatal(err)
	}
}

func TestComeChangeGo(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), ns("a"))
	d := start(t, dir)
	first := d.until("a", has("a"))
	write(t, filepath.Join(dir, "deep/er/b.json"), `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"b"}}`)
	second := d.until("b", has("b"))
	if second.Namespaces["a"] != first.Namespaces["a"] {
		t.Error("an unchanged object has another pointer")
	}
	if second.Revision <= first.Revision {
		t.Errorf("revision %d after %d", second.Revision, first.Revision)
	}
	put(t, filepath.Join(dir, "a.yaml"), ns("a2"))
	third := d.until("a2 for a", func(s *source.Snapshot) bool { return has("a2")(s) && !has("a")(s) })
	if err := os.Rename(filepath.Join(dir, "deep"), filepath.Join(dir, "moved")); err != nil {
		t.Fatal(err)
	}
	d.steady(2*settle, "b there while its folder moves", has("b"))
	if err := os.RemoveAll(filepath.Join(dir, "moved")); err != nil {
		t.Fatal(err)
	}
	last := d.until("b gone", not(has("b")))
	if last.Revision <= third.Revision {
		t.Errorf("revision %d after %d", last.Revision, third.Revision)
	}
	// A second replica, and one after a restart, are at the same revision.
	again, err := Read(dir)
	if err != nil || again.Revision != last.Revision {
		t.Errorf("another replica is at %d, not %d (%v)", again.Revision, last.Revision, err)
	}
}

// TestHalfWritten: writers that truncate, pause in the middle, or are slow,
// never make an object vanish or a broken one appear. On a machine so busy
// that the writer itself paused for as long as a change must rest, the try
// says nothing and is repeated.
func TestHalfWritten(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "all.yaml")
	text := ns("a") + "---\n" + policy("p", "web", "allow") + "---\n" + ns("b")
	write(t, path, text)
	d := start(t, dir)
	whole := func(s *source.Snapshot) bool {
		return has("a")(s) && has("b")(s) && len(s.AccessPolicies) == 1 && len(s.BrokenPolicies) == 0 && len(s.Problems) == 0
	}
	for try := range 5 {
		write(t, path, text)
		d.until("all", whole)
		gap := make(chan time.Duration, 1)
		last := fmt.Sprint("last", try)
		go func() { gap <- slowWriter(t, path, text+"---\n"+ns(last)) }()
		torn := ""
		for waiting := true; waiting; {
			if s := d.Snapshot(); !whole(s) && torn == "" {
				torn = show(s)
			}
			select {
			case <-d.Changed():
			case g := <-gap:
				waiting = false
				if torn != "" && g < settle-quiet {
					t.Fatalf("torn, though the writer paused for %v at most: %s", g, torn)
				}
			}
		}
		if torn == "" {
			d.until("the last write", has(last))
			return
		}
	}
	t.Fatal("the machine is too busy for this test")
}

// slowWriter writes a file several times in pieces and gives its longest pause.
func slowWriter(t *testing.T, path, text string) (longest time.Duration) {
	last := time.Now()
	pause := func() {
		time.Sleep(15 * time.Millisecond)
		longest, last = max(longest, time.Since(last)), time.Now()
	}
	for range 6 {
		f, err := os.Create(path) // truncates
		if err != nil {
			t.Error(err)
			return longest
		}
		at := 0
		for _, cut := range []int{20, 70, 120, 180, len(text)} {
			pause()
			if _, err := f.WriteString(text[at:cut]); err != nil {
				t.Error(err)
			}
			at = cut
		}
		f.Close()
	}
	pause()
	return longest
}

func TestConcurrentWriters(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "base.yaml"), ns("base"))
	d := start(t, dir)
	done := make(chan struct{})
	for i := range 4 {
		go func() {
			defer func() { done <- struct{}{} }()
			for j := range 50 {
				put(t, filepath.Join(dir, fmt.Sprintf("w%d/f.yaml", i)), ns(fmt.Sprintf("w%d", i))+"---\n"+ns(fmt.Sprintf("w%d-%d", i, j)))
			}
		}()
	}
	var last uint64
	for left := 4; left > 0; {
		s := d.Snapshot()
		if !has("base")(s) || s.Revision < last {
			t.Fatalf("revision %d after %d, %s", s.Revision, last, show(s))
		}
		last = s.Revision
		select {
		case <-d.Changed():
		case <-done:
			left--
		}
	}
	d.until("all of the last writes and none before", func(s *source.Snapshot) bool {
		for i := range 4 {
			if !has(fmt.Sprintf("w%d-49", i))(s) {
				return false
			}
		}
		return len(s.Namespaces) == 9
	})
}

// TestLinks: a mounted ConfigMap swaps a hidden link; nothing vanishes.
func TestLinks(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "..1/a.yaml"), ns("a")+"---\n"+ns("one"))
	link := func(old, new string) {
		t.Helper()
		if err := os.Symlink(old, new); err != nil {
			t.Fatal(err)
		}
	}
	link("..1", filepath.Join(dir, "..data"))
	link("..data/a.yaml", filepath.Join(dir, "a.yaml"))
	link(dir, filepath.Join(dir, "loop")) // must not be walked for ever
	link("nowhere", filepath.Join(dir, "dangling.yaml"))
	d := start(t, dir)
	d.until("one", has("one"))
	write(t, filepath.Join(dir, "..2/a.yaml"), ns("a")+"---\n"+ns("two"))
	link("..2", filepath.Join(dir, "..data_tmp"))
	if err := os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
	for s := d.Snapshot(); !has("two")(s); s = d.Snapshot() {
		if !has("a")(s) {
			t.Fatalf("a vanished: %s", show(s))
		}
		<-d.Changed()
	}
	if s := d.Snapshot(); len(s.Problems) > 0 {
		t.Errorf("problems: %v", s.Problems)
	}
}

// TestBad: what becomes of an object whose document goes bad.
func TestBad(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "p.yaml"), policy("p", "web", "allow"))
	write(t, filepath.Join(dir, "m.yaml"), mesh("strict"))
	write(t, filepath.Join(dir, "n.yaml"), ns("nn")+"---\n"+ns("n2"))
	d := start(t, dir)
	d.until("good ones", func(s *source.Snapshot) bool { return len(s.AccessPolicies) == 1 && s.Mesh != nil && has("nn")(s) })

	put(t, filepath.Join(dir, "p.yaml"), policy("p", "web", "alow"))
	s := d.until("the broken policy", func(s *source.Snapshot) bool { return len(s.BrokenPolicies) == 1 })
	if b := s.BrokenPolicies[0]; len(s.AccessPolicies) != 0 || b.Selector["app"] != "web" || b.Ref.String() != "AccessPolicy shop/p" {
		t.Errorf("broken %+v, policies %v", b, s.AccessPolicies)
	}
	if len(s.Problems) != 1 || s.Problems[0].File != "p.yaml" || s.Problems[0].Line != 4 || s.Problems[0].Field != "spec.rules[0].action" || s.Problems[0].Fix == "" {
		t.Errorf("problems %+v", s.Problems)
	}

	put(t, filepath.Join(dir, "m.yaml"), mesh("srict"))
	s = d.until("the bad MeshConfig", func(s *source.Snapshot) bool { return len(s.Problems) == 2 })
	if s.Mesh == nil || s.Mesh.Spec.MTLS != "strict" {
		t.Errorf("MeshConfig is %+v, not its last good version", s.Mesh)
	}

	put(t, filepath.Join(dir, "n.yaml"), "{ no yaml\n---\n"+ns("n2"))
	s = d.until("the unreadable document", func(s *source.Snapshot) bool { return len(s.Problems) == 3 })
	if !has("nn")(s) || !has("n2")(s) {
		t.Errorf("namespaces gone: %s", show(s))
	}

	// A policy whose document cannot be read at all denies what it selected.
	put(t, filepath.Join(dir, "p.yaml"), policy("p", "web", "allow"))
	d.until("the good policy", func(s *source.Snapshot) bool { return len(s.AccessPolicies) == 1 && len(s.BrokenPolicies) == 0 })
	put(t, filepath.Join(dir, "p.yaml"), "\t: {\n")
	s = d.until("broken again", func(s *source.Snapshot) bool { return len(s.BrokenPolicies) == 1 })
	if b := s.BrokenPolicies[0]; len(s.AccessPolicies) != 0 || b.Selector["app"] != "web" {
		t.Errorf("broken %+v, policies %v", b, s.AccessPolicies)
	}

	// After a restart: bad objects do not exist, bad policies that say what
	// they are deny, and the mesh whose MeshConfig is bad is strict.
	put(t, filepath.Join(dir, "p.yaml"), policy("p", "web", "alow"))
	s, err := Read(dir)
	if err != nil || s.Mesh == nil || s.Mesh.Spec.MTLS != "strict" || len(s.BrokenPolicies) != 1 || has("nn")(s) || !has("n2")(s) {
		t.Errorf("after a restart: %s (%v)", show(s), err)
	}
}

// A MeshConfig that was never understood makes the mesh strict; none at all
// does not.
func TestMeshConfigNeverUnderstood(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "ns.yaml"), ns("shop"))
	d := start(t, dir)
	if s := d.Snapshot(); s.Mesh != nil {
		t.Errorf("without a MeshConfig there is %+v", s.Mesh)
	}
	put(t, filepath.Join(dir, "mesh.yaml"), mesh("strickt"))
	d.until("strict mode", func(s *source.Snapshot) bool { return s.Mesh != nil && s.Mesh.Spec.MTLS == "strict" })
	put(t, filepath.Join(dir, "mesh.yaml"), mesh("permissive"))
	d.until("permissive mode", func(s *source.Snapshot) bool { return s.Mesh.Spec.MTLS == "permissive" })
	if err := os.Remove(filepath.Join(dir, "mesh.yaml")); err != nil {
		t.Fatal(err)
	}
	d.until("no MeshConfig", func(s *source.Snapshot) bool { return s.Mesh == nil })
}

func TestDuplicates(t *testing.T) {
	dir := t.TempDir()
	pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: shop, uid: %s}\n"
	write(t, filepath.Join(dir, "b-old.yaml"), fmt.Sprintf(pod, "old"))
	write(t, filepath.Join(dir, "a-new.yaml"), ns("x")+"---\n"+fmt.Sprintf(pod, "new"))
	then := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(dir, "b-old.yaml"), then, then); err != nil {
		t.Fatal(err)
	}
	s, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if p := s.Pods[source.Key{Namespace: "shop", Name: "p"}]; p == nil || p.UID != "old" {
		t.Errorf("pod %+v", p)
	}
	if len(s.Problems) != 1 || s.Problems[0].File != "a-new.yaml" || s.Problems[0].Line != 5 || !strings.Contains(s.Problems[0].Err, "b-old.yaml") {
		t.Errorf("problems %v", s.Problems)
	}
}

func TestUnreadable(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "big.yaml")
	write(t, path, ns("big"))
	write(t, filepath.Join(dir, "ok.yaml"), ns("ok"))
	d := start(t, dir)
	d.until("big", has("big"))
	if err := os.Truncate(path, maxFile+1); err != nil {
		t.Fatal(err)
	}
	s := d.until("the problem", func(s *source.Snapshot) bool { return len(s.Problems) == 1 })
	if !has("big")(s) || !has("ok")(s) || s.Problems[0].File != "big.yaml" {
		t.Errorf("%s", show(s))
	}
	write(t, path, ns("small"))
	d.until("small again", func(s *source.Snapshot) bool { return has("small")(s) && !has("big")(s) && len(s.Problems) == 0 })
	// A folder in a file's place, a file in a folder's.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(path, "in.yaml"), ns("in"))
	d.until("in", func(s *source.Snapshot) bool { return has("in")(s) && !has("small")(s) })
}

// TestLostEvents changes the folder through a place that is not watched.
func TestLostEvents(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	write(t, filepath.Join(elsewhere, "x"), ns("one"))
	if err := os.Symlink(filepath.Join(elsewhere, "x"), filepath.Join(dir, "x.yaml")); err != nil {
		t.Fatal(err)
	}
	d := start(t, dir)
	d.until("one", has("one"))
	put(t, filepath.Join(elsewhere, "x"), ns("two"))
	d.until("two", func(s *source.Snapshot) bool { return has("two")(s) && !has("one")(s) })
}

func TestRevisionNeverGoesBack(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	write(t, path, ns("a"))
	future := time.Now().Add(time.Hour)
	if err := os.Chtimes(path, future, future); err != nil {
		t.Fatal(err)
	}
	d := start(t, dir)
	first := d.until("a", has("a"))
	if first.Revision != uint64(future.UnixNano()) {
		t.Errorf("revision %d, want the newest time %d", first.Revision, future.UnixNano())
	}
	write(t, path, ns("a")+"---\n"+ns("b")) // an hour back
	second := d.until("b", has("b"))
	if second.Revision <= first.Revision {
		t.Errorf("revision %d after %d", second.Revision, first.Revision)
	}
	again, err := Read(dir)
	if err != nil || again.Revision != second.Revision {
		t.Errorf("after a restart %d, before %d (%v)", again.Revision, second.Revision, err)
	}
}

func TestRunNeedsAFolder(t *testing.T) {
	if err := New(Config{Dir: filepath.Join(t.TempDir(), "none")}).Run(t.Context()); err == nil {
		t.Error("no error")
	}
}
