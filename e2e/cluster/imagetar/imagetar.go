// Package imagetar writes container images as tar files that `docker load`,
// `ctr images import` and `kind load image-archive` read: files on nothing, or
// a whole root file system. There is no base image, no daemon and no registry
// in it. The same input gives the same bytes.
package imagetar

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"strings"
	"time"
)

// Image is one image to write.
type Image struct {
	Ref        string   // name:tag
	Files      []File   // each a layer of its own: images that share a file share the layer
	Layer      string   // a tar file as the one layer, instead of Files
	Entrypoint []string // what a container runs
	Env        []string // KEY=value
	StopSignal string
}

// File is a host's file and its place in the image.
type File struct {
	From string // must be a regular file
	To   string // absolute
}

// epoch is the time of everything in an image: when it was built is no part of
// its content.
var epoch = time.Unix(0, 0).UTC()

// Tag is a tag for files made from their content: it changes when a byte of
// one does, or its place.
func Tag(files []File) (string, error) {
	h := sha256.New()
	for _, f := range files {
		fmt.Fprintln(h, f.To)
		if err := writeLayer(h, f); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:12], nil
}

// The names in the archive and the configuration are those of the image spec
// v1.2 of docker (`docker save`), which all loaders read.
type manifest struct {
	Config   string
	RepoTags []string
	Layers   []string
}

type config struct {
	Architecture string    `json:"architecture"`
	OS           string    `json:"os"`
	Created      time.Time `json:"created"`
	Config       process   `json:"config"`
	RootFS       rootFS    `json:"rootfs"`
}

type process struct {
	Entrypoint []string `json:",omitempty"`
	Env        []string `json:",omitempty"`
	StopSignal string   `json:",omitempty"`
}

type rootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

// Write writes one archive of images.
func Write(w io.Writer, images ...Image) error {
	a := archive{out: tar.NewWriter(w), has: map[string]bool{}}
	var all []manifest
	for _, img := range images {
		m, err := a.image(img)
		if err != nil {
			return fmt.Errorf("write image %s: %w", img.Ref, err)
		}
		all = append(all, m)
	}
	b, err := json.Marshal(all)
	if err != nil {
		return err
	}
	if err := a.bytes("manifest.json", b); err != nil {
		return err
	}
	return a.out.Close()
}

type archive struct {
	out *tar.Writer
	has map[string]bool // layers written already
}

func (a *archive) image(img Image) (manifest, error) {
	if !strings.Contains(img.Ref, ":") {
		return manifest{}, fmt.Errorf("%q has no tag", img.Ref)
	}
	c := config{
		Architecture: runtime.GOARCH, OS: "linux", Created: epoch,
		Config: process{Entrypoint: img.Entrypoint, Env: img.Env, StopSignal: img.StopSignal},
		RootFS: rootFS{Type: "layers"},
	}
	m := manifest{RepoTags: []string{img.Ref}}
	layers := []func(io.Writer) error{}
	for _, f := range img.Files {
		layers = append(layers, func(w io.Writer) error { return writeLayer(w, f) })
	}
	if img.Layer != "" {
		layers = append(layers, func(w io.Writer) error { return copyFile(w, img.Layer) })
	}
	for _, write := range layers {
		sum, err := a.layer(write)
		if err != nil {
			return m, err
		}
		c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, "sha256:"+sum)
		m.Layers = append(m.Layers, sum+".tar")
	}
	b, err := json.Marshal(c)
	if err != nil {
		return m, err
	}
	sum := sha256.Sum256(b)
	m.Config = hex.EncodeToString(sum[:]) + ".json"
	return m, a.bytes(m.Config, b)
}

// layer writes a layer once to learn its size and name, then into the archive.
func (a *archive) layer(write func(io.Writer) error) (string, error) {
	h := sha256.New()
	n := &counter{w: h}
	if err := write(n); err != nil {
		return "", err
	}
	sum := hex.EncodeToString(h.Sum(nil))
	if a.has[sum] {
		return sum, nil
	}
	a.has[sum] = true
	if err := a.out.WriteHeader(&tar.Header{Name: sum + ".tar", Mode: 0o644, Size: n.n, ModTime: epoch}); err != nil {
		return "", err
	}
	return sum, write(a.out)
}

func (a *archive) bytes(name string, b []byte) error {
	if err := a.out.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(b)), ModTime: epoch}); err != nil {
		return err
	}
	_, err := a.out.Write(b)
	return err
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

// writeLayer writes one file, owned by root and executable as it is on the
// host, and the folders above it.
func writeLayer(w io.Writer, f File) error {
	if !path.IsAbs(f.To) {
		return fmt.Errorf("place %q of %s is not absolute", f.To, f.From)
	}
	in, err := os.Open(f.From)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file", f.From)
	}
	t := tar.NewWriter(w)
	to := strings.TrimPrefix(path.Clean(f.To), "/")
	for i, c := range to {
		if c == '/' {
			if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: to[:i+1], Mode: 0o755, ModTime: epoch}); err != nil {
				return err
			}
		}
	}
	mode := int64(0o644)
	if info.Mode()&0o111 != 0 {
		mode = 0o755
	}
	if err := t.WriteHeader(&tar.Header{Name: to, Mode: mode, Size: info.Size(), ModTime: epoch}); err != nil {
		return err
	}
	if _, err := io.Copy(t, in); err != nil {
		return fmt.Errorf("read %s: %w", f.From, err)
	}
	return t.Close()
}

func copyFile(w io.Writer, name string) error {
	in, err := os.Open(name)
	if err != nil {
		return err
	}
	defer in.Close()
	_, err = io.Copy(w, in)
	return err
}
