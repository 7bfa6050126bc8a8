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

func TestSaveAndLoad(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made")
	if _, err := Load(dir); !errors.Is(err, ErrNone) {
		t.Errorf("before anything was kept: %v", err)
	}
	for range 2 { // the second replaces the first
		if err := Save(dir, state()); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Load(dir)
	if err != nil || !wire.Equal(got, state()) {
		t.Errorf("kept %v, %v", got, err)
	}
	left, _ := os.ReadDir(dir)
	if len(left) != 1 {
		t.Errorf("left in the folder: %v", left)
	}
	if err := errors.Join(Remove(dir), Remove(dir)); err != nil {
		t.Error(err)
	}
	if _, err := Load(dir); !errors.Is(err, ErrNone) {
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

func TestDamaged(t *testing.T) {
	dir := t.TempDir()
	if err := Save(dir, state()); err != nil {
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
		"another format":  {bytes.Replace(good, []byte("node-1"), []byte("node-9"), 1), "format"},
		"not a message":   {append([]byte(format+" "+checksum(other)+"\n"), other...), "decode"},
		"another message": {[]byte(format + " " + checksum(nil) + "\n"), "no Services"},
	} {
		if err := os.WriteFile(file, tc.b, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), file) {
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
	f.Add(append([]byte(format+" "+checksum(body)+"\n"), body...), true)
	f.Add(body, true)
	f.Add([]byte("heddle-node-1 \n"), false)
	f.Fuzz(func(t *testing.T, b []byte, sealed bool) {
		if sealed { // past the checksum, into the message
			b = append([]byte(format+" "+checksum(b)+"\n"), b...)
		}
		if u, err := decode(b); err == nil && u.GetNode() == nil {
			t.Error("taken without Services")
		}
	})
}
