// Package install puts Heddle into a cluster and takes it out again: it renders
// the chart that the CLI carries, with Helm's own engine, applies it in order,
// waits until everything runs and says what is stuck. It knows nothing of
// kubeconfigs and flags. The commands install, uninstall and render of
// cmd/heddle call it.
package install

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	chartutil "helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/loader/archive"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"helm.sh/helm/v4/pkg/strvals"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
	"github.com/heddle-mesh/heddle/charts"
	"github.com/heddle-mesh/heddle/cmd/heddle/cluster"
)

const (
	// Namespace of all that is not cluster-wide; part of the control plane's
	// identity, so not to be chosen.
	Namespace = "heddle-system"
	// partLabel is on every object of the chart.
	partLabel   = v1alpha1.Group + "/part"
	releaseName = "heddle"
)

// Values are the user's choices over the chart's values.yaml, as Helm reads
// them: files first, in order, then Set, then SetString.
type Values struct {
	Files     []string // YAML
	Set       []string // path.to.key=value
	SetString []string // the same, but the value is always a string
}

// Manifest is one document of the rendered chart.
type Manifest struct {
	Source string // template's file
	Text   string
	Object *cluster.Object
}

// Render gives the chart's documents in the order to apply them: CRDs first.
// kubeVersion is the cluster's, such as "v1.36.3"; release is Heddle's version,
// which names the images where no value does ("": the chart's own).
func Render(v Values, kubeVersion, release string) ([]Manifest, error) {
	values, err := v.merge()
	if err != nil {
		return nil, err
	}
	return render(values, kubeVersion, release)
}

// merge reads files and settings into one tree.
func (v Values) merge() (map[string]any, error) {
	out := map[string]any{}
	for _, name := range v.Files {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read --values: %w", err)
		}
		one, err := common.ReadValues(text)
		if err != nil {
			return nil, fmt.Errorf("read --values %s: %w", name, err)
		}
		out = loader.MergeMaps(out, one)
	}
	for _, s := range v.Set {
		if err := strvals.ParseInto(s, out); err != nil {
			return nil, fmt.Errorf("--set %s: %w", s, err)
		}
	}
	for _, s := range v.SetString {
		if err := strvals.ParseIntoString(s, out); err != nil {
			return nil, fmt.Errorf("--set-string %s: %w", s, err)
		}
	}
	return out, nil
}

func render(values map[string]any, kubeVersion, release string) ([]Manifest, error) {
	c, err := load()
	if err != nil {
		return nil, err
	}
	if release != "" {
		c.Metadata.AppVersion = release
	}
	caps := common.DefaultCapabilities.Copy()
	kube, err := common.ParseKubeVersion(kubeVersion)
	if err != nil {
		return nil, fmt.Errorf("version of Kubernetes %q: %w", kubeVersion, err)
	}
	caps.KubeVersion = *kube
	if err := newEnough(c, kubeVersion); err != nil {
		return nil, err
	}
	all, err := chartutil.ToRenderValues(c, values, common.ReleaseOptions{Name: releaseName, Namespace: Namespace, IsInstall: true, Revision: 1}, caps)
	if err != nil {
		return nil, fmt.Errorf("values: %w", err)
	}
	files, err := engine.Render(c, all)
	if err != nil {
		return nil, fmt.Errorf("render the chart: %w", err)
	}
	for _, crd := range c.CRDObjects() {
		files[crd.Filename] = string(crd.File.Data)
	}
	return documents(files)
}

// load reads the embedded chart as Helm reads a folder.
func load() (*chart.Chart, error) {
	var files []*archive.BufferedFile
	err := fs.WalkDir(charts.Heddle, "heddle", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := charts.Heddle.ReadFile(name)
		files = append(files, &archive.BufferedFile{Name: strings.TrimPrefix(name, "heddle/"), Data: data})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the embedded chart: %w", err)
	}
	c, err := loader.LoadFiles(files)
	if err != nil {
		return nil, fmt.Errorf("load the embedded chart: %w", err)
	}
	return c, nil
}

// newEnough judges the cluster by the chart's kubeVersion (">=1.33.0-0").
func newEnough(c *chart.Chart, kubeVersion string) error {
	least, err := version.ParseGeneric(strings.TrimSuffix(strings.TrimPrefix(c.Metadata.KubeVersion, ">="), "-0"))
	if err != nil {
		return fmt.Errorf("the chart's kubeVersion: %w", err)
	}
	have, err := version.ParseGeneric(kubeVersion)
	if err != nil {
		return fmt.Errorf("version of Kubernetes %q: %w", kubeVersion, err)
	}
	if have.LessThan(least) {
		return fmt.Errorf("the cluster runs Kubernetes %s, Heddle needs %s at least", kubeVersion, least)
	}
	return nil
}

// documents cuts rendered files into objects and sorts them.
func documents(files map[string]string) ([]Manifest, error) {
	var out []Manifest
	for name, text := range files {
		if base := path.Base(name); strings.HasPrefix(base, "_") || strings.HasSuffix(base, ".txt") {
			continue
		}
		for _, doc := range strings.Split("\n"+strings.TrimPrefix(text, "---\n"), "\n---\n") {
			objs, err := cluster.Read(name, []byte(doc))
			if err != nil {
				return nil, err
			}
			if len(objs) > 1 {
				return nil, fmt.Errorf("%s: a list in the chart", name)
			}
			for _, o := range objs {
				out = append(out, Manifest{name, strings.Trim(doc, "\n") + "\n", o})
			}
		}
	}
	if len(out) == 0 {
		return nil, errors.New("the chart renders to nothing")
	}
	slices.SortFunc(out, func(a, b Manifest) int {
		return cmp.Or(cmp.Compare(rank(a.Object.GetKind()), rank(b.Object.GetKind())),
			cmp.Compare(a.Source, b.Source), cmp.Compare(a.Object.GetName(), b.Object.GetName()))
	})
	return out, nil
}

// order is that of applying: what others refer to goes first, and the webhook
// last, when everything it needs is on its way.
var order = []string{
	"CustomResourceDefinition", "Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding",
	"Service", "PodDisruptionBudget", "DaemonSet", "Deployment", "MeshConfig", "MutatingWebhookConfiguration",
}

func rank(kind string) int {
	if i := slices.Index(order, kind); i >= 0 {
		return i
	}
	return len(order)
}

// Document is the text with its marker and where it comes from, as Helm prints
// it.
func (m Manifest) Document() string { return "---\n# Source: " + m.Source + "\n" + m.Text }
