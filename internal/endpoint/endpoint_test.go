package endpoint

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write what the scenarios give")

// TestScenarios reads testdata/*.txt: endpoints, clients, and the verdict of
// each client under both policies. Rows are kube-proxy's B1-B12.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scenarios", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, string(b))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(b) {
				t.Errorf("got\n%s\nwant\n%s", got, b)
			}
		})
	}
}

// play repeats a scenario with its verdicts made anew. Lines are
//
//	ep NAME ready|serving|down [terminating] [node=N] [zone=Z] [hint-zones=A,B] [hint-nodes=A,B]
//	client [node=N] [zone=Z] -> cluster: ... | local: ...
func play(t *testing.T, text string) string {
	var eps []Endpoint
	var names []string
	var out strings.Builder
	for _, line := range strings.SplitAfter(text, "\n") {
		head, _, _ := strings.Cut(line, " ->")
		words := strings.Fields(head)
		if len(words) == 0 || words[0] == "#" {
			out.WriteString(line)
			continue
		}
		switch words[0] {
		case "ep":
			eps, names = append(eps, readEndpoint(t, words[2:])), append(names, words[1])
			out.WriteString(line)
		case "client":
			var c Client
			for _, w := range words[1:] {
				k, v, _ := strings.Cut(w, "=")
				switch k {
				case "node":
					c.Node = v
				case "zone":
					c.Zone = v
				default:
					t.Fatalf("word %q", w)
				}
			}
			fmt.Fprintf(&out, "%s -> cluster: %s | local: %s\n", strings.TrimSpace(head), verdict(eps, names, c, Policy{}), verdict(eps, names, c, Policy{Local: true}))
		default:
			t.Fatalf("line %q", line)
		}
	}
	return out.String()
}

func readEndpoint(t *testing.T, words []string) Endpoint {
	var e Endpoint
	for _, w := range words {
		k, v, _ := strings.Cut(w, "=")
		switch k {
		case "ready":
			e.Ready, e.Serving = true, true
		case "serving":
			e.Serving = true
		case "down":
		case "terminating":
			e.Terminating = true
		case "node":
			e.Node = v
		case "zone":
			e.Zone = v
		case "hint-zones":
			e.HintZones = strings.Split(v, ",")
		case "hint-nodes":
			e.HintNodes = strings.Split(v, ",")
		default:
			t.Fatalf("word %q", w)
		}
	}
	return e
}

func verdict(eps []Endpoint, names []string, c Client, p Policy) string {
	got, v := Select(eps, c, p, nil)
	s := v.String()
	for _, i := range got {
		s += " " + names[i]
	}
	return s
}

// TestTruth goes through every combination of conditions and place of two
// endpoints and compares with the rules said once more, differently.
func TestTruth(t *testing.T) {
	var all []Endpoint
	for bits := range 16 {
		e := Endpoint{Ready: bits&1 != 0, Serving: bits&2 != 0, Terminating: bits&4 != 0, Node: "b"}
		if bits&8 != 0 {
			e.Node = "a"
		}
		all = append(all, e)
	}
	client := Client{Node: "a"}
	for _, x := range all {
		for _, y := range all {
			eps := []Endpoint{x, y}
			for _, local := range []bool{false, true} {
				level := func(e Endpoint) int {
					switch {
					case e.Ready:
						return 2
					case e.Serving && e.Terminating:
						return 1
					}
					return 0
				}
				best, anywhere := 0, 0
				for _, e := range eps {
					anywhere = max(anywhere, level(e))
					if !local || e.Node == "a" {
						best = max(best, level(e))
					}
				}
				var want []int
				for i, e := range eps {
					if best > 0 && level(e) == best && (!local || e.Node == "a") {
						want = append(want, i)
					}
				}
				verdict := Usable
				switch {
				case best == 0 && anywhere > 0:
					verdict = Drop
				case best == 0:
					verdict = Reject
				}
				got, v := Select(eps, client, Policy{Local: local}, nil)
				if v != verdict || len(got) != len(want) || len(got) > 0 && !reflect.DeepEqual(got, want) {
					t.Errorf("%+v local=%v: %v %v, want %v %v", eps, local, v, got, verdict, want)
				}
			}
		}
	}
}

func TestSelectDoesNotAllocate(t *testing.T) {
	eps := make([]Endpoint, 50)
	for i := range eps {
		eps[i] = Endpoint{Ready: true, Serving: true, Node: "a", HintZones: []string{"z"}}
	}
	out := make([]int, 0, len(eps))
	if n := testing.AllocsPerRun(100, func() {
		out, _ = Select(eps, Client{"a", "z"}, Policy{}, out)
		out, _ = Select(eps, Client{"a", "z"}, Policy{Local: true}, out)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestBetter(t *testing.T) {
	ready := Endpoint{Ready: true, Serving: true}
	leaving := Endpoint{Serving: true, Terminating: true}
	unready := Endpoint{}
	for _, tt := range []struct {
		name string
		a, b Endpoint
		want bool
	}{
		{"same", ready, ready, false},
		{"ready over leaving", ready, leaving, true},
		{"leaving never over ready", leaving, ready, false},
		{"not terminating over leaving, though not ready", unready, leaving, true},
		{"ready over not ready", ready, unready, true},
		{"serving over not", Endpoint{Serving: true}, unready, true},
	} {
		if got := Better(tt.a, tt.b); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}
