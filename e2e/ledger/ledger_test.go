package ledger

import (
	"fmt"
	"strings"
	"testing"
)

// good is a load of n requests that one client made and two servers answered.
func good(n int) []Entry {
	var all []Entry
	for i := range n {
		id, by := fmt.Sprintf("c-%d", i), fmt.Sprintf("s%d", i%2)
		all = append(all,
			Entry{Who: "c", What: Begin, ID: id}, Entry{Who: by, What: Got, ID: id},
			Entry{Who: by, What: Done, ID: id}, Entry{Who: "c", What: End, ID: id, Status: 200, By: by})
	}
	return append(all, Entry{Who: "c", What: Bye, Count: n})
}

func TestCompare(t *testing.T) {
	without := func(what What, id string) func([]Entry) []Entry {
		return func(all []Entry) (out []Entry) {
			for _, e := range all {
				if e.What != what || e.ID != id {
					out = append(out, e)
				}
			}
			return out
		}
	}
	change := func(what What, id string, f func(*Entry)) func([]Entry) []Entry {
		return func(all []Entry) []Entry {
			for i := range all {
				if all[i].What == what && all[i].ID == id {
					f(&all[i])
				}
			}
			return all
		}
	}
	cases := []struct {
		name   string
		change func([]Entry) []Entry
		want   string // part of the error; empty: none
	}{
		{"as it must be", func(all []Entry) []Entry { return all }, ""},
		{"an answer never came", without(End, "c-3"), "c-3 is lost"},
		{"the client was killed", without(Bye, ""), "did not end in order"},
		{"a line of the client is missing, begin and end", func(all []Entry) []Entry { return without(End, "c-3")(without(Begin, "c-3")(all)) }, "took leave after 10"},
		{"a failure", change(End, "c-3", func(e *Entry) { e.Status, e.Reason = 503, "connect_failed" }), "status 503 connect_failed"},
		{"no answer", change(End, "c-3", func(e *Entry) { e.Status, e.Err = 0, "EOF" }), "EOF"},
		{"answered by nobody", func(all []Entry) []Entry { return without(Got, "c-3")(without(Done, "c-3")(all)) }, "no server wrote down"},
		{"done twice", func(all []Entry) []Entry { return append(all, Entry{Who: "s0", What: Got, ID: "c-3"}) }, "done 2 times"},
		{"answered by another", change(End, "c-3", func(e *Entry) { e.By = "s0" }), `answered by "s0", but got by [s1]`},
		{"served without a client", func(all []Entry) []Entry { return append(all, Entry{Who: "s0", What: Got, ID: "x"}) }, "no client began it"},
		{"ended twice", func(all []Entry) []Entry {
			return append(all, Entry{Who: "c", What: End, ID: "c-3", Status: 200, By: "s1"})
		}, "ended twice"},
		{"nothing at all", func([]Entry) []Entry { return nil }, "no request was begun"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			v := Compare(c.change(good(10)))
			err := v.Err()
			if c.want == "" {
				if err != nil || v.Begun != 10 || v.Good != 10 || len(v.Servers) != 2 || len(v.Clients) != 1 {
					t.Errorf("%+v: %v", v, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("want %q in: %v", c.want, err)
			}
		})
	}
}

func TestManyProblemsAreBounded(t *testing.T) {
	all := good(100)
	for i := range all {
		if all[i].What == End {
			all[i].Status = 503
		}
	}
	if err := Compare(all).Err(); err == nil || !strings.Contains(err.Error(), "and 88 more") {
		t.Error(err)
	}
}

func TestRead(t *testing.T) {
	b, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	b.Write(Entry{What: Begin, ID: "1"})
	name := b.file.Name()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(name, ".jsonl") {
		t.Error(name)
	}
	got, err := Read(strings.NewReader(`{"who":"c","what":"begin","id":"1"}` + "\n" + `{"who":"c","wh`))
	if err != nil || len(got) != 1 || got[0].ID != "1" {
		t.Errorf("%v %v", got, err)
	}
	if _, err := Read(strings.NewReader("no json\n")); err == nil {
		t.Error("a line that is no entry is read")
	}
}
