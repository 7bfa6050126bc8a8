package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/heddle-mesh/heddle/e2e/cluster/imagetar"
	"github.com/heddle-mesh/heddle/e2e/cluster/programs"
)

// repository is what stands in front of every image's name: the chart's
// image.repository.
const repository = "heddle"

// inCluster are the programs that run in a cluster, each alone in its image.
var inCluster = []string{"heddle-controlplane", "heddle-injector", "heddle-sidecar", "heddle-node"}

// ours are Heddle's images of the programs in bin. An empty tag stands for one
// made from their content.
func ours(bin, tag string) ([]imagetar.Image, error) {
	var files []imagetar.File
	for _, p := range inCluster {
		files = append(files, imagetar.File{From: filepath.Join(bin, p), To: "/" + p})
	}
	if tag == "" {
		sum, err := imagetar.Tag(files)
		if err != nil {
			return nil, fmt.Errorf("name the images after their content: %w", err)
		}
		tag = "e2e-" + sum
	}
	var out []imagetar.Image
	for i, p := range inCluster {
		out = append(out, imagetar.Image{Ref: repository + "/" + p + ":" + tag, Files: files[i : i+1], Entrypoint: []string{"/" + p}})
	}
	return out, nil
}

// writeImages writes one archive for each image, and one with the shop's
// programs.
func writeImages(out io.Writer, bin, dir, tag string) error {
	images, err := ours(bin, tag)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for i, img := range images {
		path := filepath.Join(dir, inCluster[i]+".tar")
		if err := writeArchive(path, img); err != nil {
			return err
		}
		fmt.Fprintf(out, "%s  %s\n", path, img.Ref)
	}
	files, err := applications(bin)
	if err != nil {
		return err
	}
	shop := imagetar.Image{Ref: repository + "/e2e-apps:" + tag, Files: files}
	path := filepath.Join(dir, "e2e-apps.tar")
	fmt.Fprintf(out, "%s  %s (the shop of e2e/shop/manifests)\n", path, shop.Ref)
	return writeArchive(path, shop)
}

// testImages are all images of a test cluster and their short names: ours, one
// of all applications in bin/apps, and Jaeger.
func testImages(bin, jaeger string) ([]imagetar.Image, map[string]string, error) {
	images, err := ours(bin, "")
	if err != nil {
		return nil, nil, err
	}
	names := map[string]string{}
	for i, img := range images {
		names[inCluster[i]] = img.Ref
	}
	files, err := applications(bin)
	if err != nil {
		return nil, nil, err
	}
	tag, err := imagetar.Tag(files)
	if err != nil {
		return nil, nil, err
	}
	names["e2e-apps"] = repository + "/e2e-apps:" + tag
	names["jaeger"] = repository + "/jaeger:" + programs.Jaeger
	return append(images,
		imagetar.Image{Ref: names["e2e-apps"], Files: files},
		imagetar.Image{Ref: names["jaeger"], Files: []imagetar.File{{From: filepath.Join(jaeger, "jaeger"), To: "/jaeger"}}, Entrypoint: []string{"/jaeger"}},
	), names, nil
}

// applications are the programs of bin/apps, all for one image.
func applications(bin string) ([]imagetar.File, error) {
	apps, err := os.ReadDir(filepath.Join(bin, "apps"))
	if err != nil {
		return nil, err
	}
	var files []imagetar.File
	for _, a := range apps {
		if a.Type().IsRegular() {
			files = append(files, imagetar.File{From: filepath.Join(bin, "apps", a.Name()), To: "/" + a.Name()})
		}
	}
	return files, nil
}

func writeArchive(path string, images ...imagetar.Image) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(imagetar.Write(f, images...), f.Close())
}

// writeNames writes images.json for the tests.
func writeNames(path string, names map[string]string) error {
	b, err := json.MarshalIndent(names, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o644)
}
