package place

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
	"github.com/heddle-mesh/heddle/cmd/heddle/cluster"
	"github.com/heddle-mesh/heddle/internal/source"
	"github.com/heddle-mesh/heddle/internal/source/kube"
)

// inCluster is a cluster.
type inCluster struct {
	c                   *cluster.Cluster
	kubeconfig, context string // as flags say them; may be empty
}

// Cluster is a Kubernetes cluster.
func Cluster(c *cluster.Cluster, kubeconfig, context string) Place {
	return &inCluster{c, kubeconfig, context}
}

// APIVersion of our kinds.
const APIVersion = v1alpha1.Group + "/" + v1alpha1.Version

// Kinds are ours, in the order in which they are shown.
var Kinds = []string{"MeshConfig", "AccessPolicy", "TrafficPolicy"}

func (p *inCluster) Namespace() string { return p.c.Namespace() }

// world reads the cluster through the control plane's own door, once.
func (p *inCluster) World(ctx context.Context) (*source.Snapshot, error) {
	src, err := kube.New(kube.Config{Kubeconfig: p.kubeconfigs(), Context: p.context})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- src.Run(ctx) }()
	defer func() {
		cancel()
		<-ended
	}()
	for {
		if s := src.Snapshot(); s != nil {
			return s, nil
		}
		select {
		case <-src.Changed():
		case err := <-ended:
			ended <- nil
			if err == nil {
				err = ctx.Err()
			}
			return nil, fmt.Errorf("read the cluster: %w", err)
		case <-ctx.Done():
			return nil, fmt.Errorf("read the cluster: %w (may this user list pods, nodes, Services, EndpointSlices and Heddle's kinds everywhere?)", context.Cause(ctx))
		}
	}
}

// kubeconfigs are the files that name the cluster, as kubectl and cluster.Connect
// find them; "": none is there, so we are in a pod of it.
func (p *inCluster) kubeconfigs() string {
	if p.kubeconfig != "" {
		return p.kubeconfig
	}
	found := clientcmd.NewDefaultClientConfigLoadingRules().Precedence
	found = slices.DeleteFunc(found, func(name string) bool { _, err := os.Stat(name); return name == "" || err != nil })
	return strings.Join(found, string(filepath.ListSeparator))
}

func (p *inCluster) Policies(ctx context.Context, namespace string) ([]*Object, error) {
	var out []*Object
	for _, kind := range Kinds {
		ref := cluster.Ref{APIVersion: APIVersion, Kind: kind, Namespace: namespace}
		if kind == "MeshConfig" {
			ref.Namespace = ""
		}
		list, err := p.c.List(ctx, ref, "")
		if err != nil {
			return nil, err
		}
		for i := range list {
			s, err := ofObject(&list[i])
			if err != nil {
				return nil, err
			}
			out = append(out, s)
		}
	}
	return out, nil
}

func ofObject(o *cluster.Object) (*Object, error) {
	o = o.DeepCopy()
	o.SetManagedFields(nil)
	text, err := o.MarshalJSON()
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", cluster.RefOf(o), err)
	}
	s := &Object{Ref: source.Ref{Kind: o.GetKind(), Namespace: o.GetNamespace(), Name: o.GetName()},
		Generation: o.GetGeneration(), Created: o.GetCreationTimestamp().Time, JSON: text}
	var status struct {
		Status v1alpha1.PolicyStatus `json:"status"`
	}
	if err := json.Unmarshal(text, &status); err != nil {
		return nil, fmt.Errorf("read the status of %s: %w", s.Ref, err)
	}
	for _, c := range status.Status.Conditions {
		s.Conditions = append(s.Conditions, source.Condition{Type: c.Type, Status: string(c.Status), Reason: c.Reason, Message: c.Message, ObservedGeneration: c.ObservedGeneration})
	}
	return s, nil
}

func (p *inCluster) One(ctx context.Context, ref source.Ref) (*Object, error) {
	o, err := p.c.Get(ctx, cluster.Ref{APIVersion: APIVersion, Kind: ref.Kind, Namespace: ref.Namespace, Name: ref.Name})
	if cluster.NotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return ofObject(o)
}

func (p *inCluster) Put(ctx context.Context, ref source.Ref, text []byte) (Done, error) {
	o := &cluster.Object{}
	if err := o.UnmarshalJSON(text); err != nil {
		return Done{}, fmt.Errorf("read %s: %w", ref, err)
	}
	did, err := p.c.Apply(ctx, o)
	return Done{What: string(did)}, err
}
