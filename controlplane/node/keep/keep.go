// Package keep keeps what a node agent was last told on the node's disk, so
// that a node which starts while the control plane is away forwards as it did.
// A file that is damaged, of another version, of another node or of another
// cluster is an error and never half read. controlplane/node calls it.
package keep

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	pb "github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/wire"
)

// The file is one line (a word with the format's version, then the SHA-256 of
// the rest in hexadecimal), one line of JSON (an Owner) and the wire's message.
const (
	name   = "services.state"
	fresh  = name + ".new" // what is being written; always the same, so that crashes leave one
	format = "heddle-node-2"
	// maxSize bounds what is read: four times the largest message of the wire.
	maxSize = 4 * wire.MaxMessage
)

// ErrNone says that nothing was kept.
var ErrNone = errors.New("nothing is kept")

// ErrForeign says that another node's or another cluster's state was kept.
var ErrForeign = errors.New("not this node's")

// Owner is whose state it is. A folder outlives a cluster that is reset and
// made anew, and may come to a node within the image of another one's disk.
type Owner struct {
	Node string `json:"node"`
	// Cluster names the cluster by what it has alone. One word in common is
	// enough: they are replaced one after the other.
	Cluster []string `json:"cluster"`
}

// fits says why what another Owner kept is not for o.
func (o Owner) fits(kept Owner) error {
	if kept.Node != o.Node {
		return fmt.Errorf("it is of node %.300q, and this is %q: %w", kept.Node, o.Node, ErrForeign)
	}
	same := slices.ContainsFunc(kept.Cluster, func(c string) bool { return slices.Contains(o.Cluster, c) })
	if !same && len(kept.Cluster)+len(o.Cluster) > 0 {
		return fmt.Errorf("it is of another cluster: %w", ErrForeign)
	}
	return nil
}

// Load reads what o keeps in a folder.
func Load(dir string, o Owner) (*pb.Update, error) {
	f, err := os.Open(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNone
	}
	if err != nil {
		return nil, fmt.Errorf("read kept state: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return nil, fmt.Errorf("read kept state: %w", err)
	}
	u, err := decode(b, o)
	if err != nil {
		return nil, fmt.Errorf("kept state %s: %w", f.Name(), err)
	}
	return u, nil
}

func decode(b []byte, o Owner) (*pb.Update, error) {
	if len(b) > maxSize {
		return nil, fmt.Errorf("it has more than %d bytes", maxSize)
	}
	head, body, ok := bytes.Cut(b, []byte("\n"))
	word, sum, spaced := bytes.Cut(head, []byte(" "))
	switch {
	case !ok || !spaced:
		return nil, errors.New("it is no state file")
	case string(word) != format:
		return nil, fmt.Errorf("its format is %.20q, not %s", word, format)
	case string(sum) != checksum(body):
		return nil, errors.New("it is damaged: its checksum does not fit")
	}
	line, message, _ := bytes.Cut(body, []byte("\n"))
	var kept Owner
	if err := json.Unmarshal(line, &kept); err != nil {
		return nil, fmt.Errorf("it does not say whose it is: %w", err)
	}
	if err := o.fits(kept); err != nil {
		return nil, err
	}
	u := &pb.Update{}
	if err := wire.Unmarshal(message, u); err != nil {
		return nil, err
	}
	if u.GetNode() == nil {
		return nil, errors.New("it holds no Services of a node")
	}
	return u, nil
}

func checksum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Save replaces what is kept, whole or not at all, also over a power cut.
func Save(dir string, o Owner, u *pb.Update) error {
	message, err := wire.Marshal(u)
	if err != nil {
		return fmt.Errorf("keep state: %w", err)
	}
	body, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("keep state: %w", err)
	}
	body = append(append(body, '\n'), message...)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("keep state: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, fresh), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("keep state: %w", err)
	}
	_, err = f.Write(append([]byte(format+" "+checksum(body)+"\n"), body...))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, name))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("keep state: %w", err), os.Remove(f.Name()))
	}
	if d, err := os.Open(dir); err == nil { // so that the new name survives too
		err = errors.Join(d.Sync(), d.Close())
		if err != nil {
			return fmt.Errorf("keep state: %w", err)
		}
	}
	return nil
}

// Remove takes away what is kept, what an interrupted Save left, and the folder
// unless there is more in it or something is mounted on it.
func Remove(dir string) error {
	list, err := filepath.Glob(filepath.Join(dir, name+"*"))
	if err != nil {
		return fmt.Errorf("remove kept state: %w", err)
	}
	for _, f := range list {
		if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove kept state: %w", err)
		}
	}
	err = os.Remove(dir)
	for _, fine := range []error{fs.ErrNotExist, syscall.ENOTEMPTY, syscall.EBUSY, syscall.EROFS} {
		if errors.Is(err, fine) {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("remove the folder of kept state: %w", err)
	}
	return nil
}
