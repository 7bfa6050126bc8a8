package keep

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	pb "github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/wire"
)

func state() *pb.Update {
	return &pb.Update{Name: "node", Version: []byte("v1"), Revision: 7, Content: &pb.Update_Node{Node: &pb.NodeServices{
		Services: []*pb.NodeService{{Service: &pb.Service{Namespace: "shop", Name: "orders", Vips: [][]byte{{10, 96, 0, 1}}}}}, Zone: "z1"}}}
}

var owner = Owner{Node: "n1", Cluster: []string{"ca-1"}}

// sealed is a file with a good checksum.
func sealed(line string, message []byte) []byte {
	body := append([]byte(line+"\n"), message...)
	return append([]byte(format+" "+checksum(body)+"\n"), body...)
}

func TestSaveAndLoad(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made")
	if _, err := Load(dir, owner); !errors.Is(err, ErrNone) {
		t.Errorf("before anything was kept: %v", err)
	}
	for range 2 { // the second replaces the first
		if err := Save(dir, owner, state()); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Load(dir, owner)
	if err != nil || !wire.Equal(got, state()) {
		t.Errorf("kept %v, %v", got, err)
	}
	// A crash within Save left its file, which is in nobody's way.
	if err := errors.Join(os.WriteFile(filepath.Join(dir, fresh), bytes.Repeat([]byte("x"), 10_000), 0o600), Save(dir, owner, state())); err != nil {
		t.Fatal(err)
	}
	if got, err := Load(dir, owner); err != nil || !wire.Equal(got, state()) {
		t.Errorf("kept %v, %v", got, err)
	}
	left, _ := os.ReadDir(dir)
	if len(left) != 1 {
		t.Errorf("left in the folder: %v", left)
	}
	if err := errors.Join(Remove(dir), Remove(dir)); err != nil {
		t.Error(err)
	}
	if _, err := Load(dir, owner); !errors.Is(err, ErrNone) {
		t.Errorf("after it was removed: %v", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder is left: %v", err)
	}
}

// What others have put there stays.
func TestRemoveLeavesOthers(t *testing.T) {
	dir := t.TempDir()
	other := filepath.Join(dir, "other")
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Remove(dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(other); err != nil {
		t.Error(err)
	}
}

// What another node or another cluster kept is not taken.
func TestOwner(t *testing.T) {
	for name, tc := range map[string]struct {
		kept, asks Owner
		want       string // empty: taken
	}{
		"the same":                       {owner, owner, ""},
		"another node":                   {owner, Owner{"n2", owner.Cluster}, `of node "n1", and this is "n2"`},
		"another cluster":                {owner, Owner{"n1", []string{"ca-2", "ca-3"}}, "another cluster"},
		"the CA is being replaced":       {Owner{"n1", []string{"ca-1", "ca-2"}}, Owner{"n1", []string{"ca-2"}}, ""},
		"whose cluster cannot be said":   {owner, Owner{Node: "n1"}, "another cluster"},
		"whose cluster was not said":     {Owner{Node: "n1"}, owner, "another cluster"},
		"outside of any cluster, always": {Owner{Node: "n1"}, Owner{Node: "n1"}, ""},
	} {
		dir := t.TempDir()
		if err := Save(dir, tc.kept, state()); err != nil {
			t.Fatal(err)
		}
		u, err := Load(dir, tc.asks)
		if tc.want == "" && (err != nil || !wire.Equal(u, state())) || tc.want != "" && (u != nil || !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDamaged(t *testing.T) {
	dir := t.TempDir()
	if err := Save(dir, owner, state()); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, name)
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(good)
	flipped[len(flipped)-1] ^= 1
	other := []byte("x")
	for name, tc := range map[string]struct {
		b    []byte
		want string
	}{
		"empty":           {nil, "no state file"},
		"cut":             {good[:len(good)-3], "damaged"},
		"a bit flipped":   {flipped, "damaged"},
		"another format":  {bytes.Replace(good, []byte("node-2"), []byte("node-9"), 1), "format"},
		"nobody's":        {sealed("", other), "whose it is"},
		"not a message":   {sealed(`{"node":"n1","cluster":["ca-1"]}`, other), "decode"},
		"another message": {sealed(`{"node":"n1","cluster":["ca-1"]}`, nil), "no Services"},
	} {
		if err := os.WriteFile(file, tc.b, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(dir, owner); err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzDecode: whatever the file holds, no panic, and what is taken has Services.
func FuzzDecode(f *testing.F) {
	body, err := wire.Marshal(state())
	if err != nil {
		f.Fatal(err)
	}
	line := `{"node":"n1","cluster":["ca-1"]}`
	f.Add(append([]byte(line+"\n"), body...), true)
	f.Add(sealed(line, body), false)
	f.Add([]byte("heddle-node-2 \n"), false)
	f.Fuzz(func(t *testing.T, b []byte, seal bool) {
		if seal { // past the checksum, into the message
			b = append([]byte(format+" "+checksum(b)+"\n"), b...)
		}
		if u, err := decode(b, owner); err == nil && u.GetNode() == nil {
			t.Error("taken without Services")
		}
	})
}
