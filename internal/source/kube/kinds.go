package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/heddle-mesh/heddle/api/v1alpha1"
	"github.com/heddle-mesh/heddle/internal/source/kube/apiserver"
)

// only gives the kinds named; nil: all.
func only(names []string) ([]apiserver.Kind, error) {
	all := apiserver.Catalogue()
	if names == nil {
		return all, nil
	}
	for _, n := range names {
		if !slices.ContainsFunc(all, func(k apiserver.Kind) bool { return k.Name == n }) {
			return nil, fmt.Errorf("kind %q is none that is watched", n)
		}
	}
	return slices.DeleteFunc(all, func(k apiserver.Kind) bool { return !slices.Contains(names, k.Name) }), nil
}

const (
	// discoverEvery is how soon a kind is watched whose CRD was just installed.
	discoverEvery = 5 * time.Second
	// askAgain is the pause after the API server could not be asked: the first
	// snapshot waits for the answer.
	askAgain = time.Second
	// goneAfter is how often in a row a kind must not be there to have gone: an
	// API server that starts serves its CRDs a little later than the rest. A
	// CRD that is deleted takes its objects along, and those deletions are
	// seen at once. Nor is the first snapshot one without our own kinds before
	// that: without policies, everything would be allowed.
	goneAfter = 3
)

// discovering starts the watch of an optional kind when the API server serves
// it, and ends it when it no longer does, until ctx ends.
func (s *Source) discovering(ctx context.Context, w *watches) {
	var optional []apiserver.Kind
	for _, k := range s.kinds {
		if k.Optional {
			optional = append(optional, k)
		}
	}
	missing := map[string]int{}
	var told time.Time
	for {
		served, err := s.served(ctx, optional)
		again := discoverEvery
		if err == nil {
			told = time.Time{}
			if !s.settle(ctx, w, optional, served, missing) {
				again = askAgain
			}
		} else {
			again = askAgain
			if ctx.Err() == nil && time.Since(told) >= tellAgain {
				told = time.Now()
				s.log.Warn("cannot ask the API server which kinds it serves", "again_in", again.String(), "error", err)
			}
		}
		if !pause(ctx, again) {
			return
		}
	}
}

// settle starts and ends watches by what is served; missing counts how often
// in a row a kind was not. false: one of our own may still come.
func (s *Source) settle(ctx context.Context, w *watches, optional []apiserver.Kind, served map[string]string, missing map[string]int) bool {
	sure, lacking := true, []apiserver.Kind(nil)
	for _, k := range optional {
		version, is := served[k.Name]
		switch {
		case is && !w.running(k.Name):
			missing[k.Name] = 0
			k.Versions = []string{version}
			s.log.Info("watching a kind that the API server serves", "kind", k.Name, "version", k.APIVersion())
			w.start(ctx, s, k)
		case is:
			missing[k.Name] = 0
		case w.running(k.Name):
			if missing[k.Name]++; missing[k.Name] >= goneAfter {
				s.log.Warn("the API server no longer serves a kind, its watch ends", "kind", k.Name)
				w.stop(k.Name)
				s.forget(k.Name)
			}
		case k.Group == v1alpha1.Group && missing[k.Name] < goneAfter:
			if missing[k.Name]++; missing[k.Name] == goneAfter {
				s.log.Warn("the API server does not serve a kind of ours: are Heddle's CustomResourceDefinitions installed?", "kind", k.Name)
			}
		}
		if k.Group == v1alpha1.Group && !w.running(k.Name) {
			sure = sure && missing[k.Name] >= goneAfter
			lacking = append(lacking, k)
		}
	}
	s.mu.Lock()
	s.lacking = lacking
	s.asked = s.asked || sure
	asked := s.asked
	s.mu.Unlock()
	s.touch()
	return asked
}

// served gives the version in which each optional kind is served.
func (s *Source) served(ctx context.Context, optional []apiserver.Kind) (map[string]string, error) {
	out := map[string]string{}
	groups := map[string]map[string]bool{} // group/version: plurals
	for _, k := range optional {
		for _, v := range k.Versions {
			gv := k.Group + "/" + v
			if groups[gv] == nil {
				plurals, err := s.resources(ctx, gv)
				if err != nil {
					return nil, err
				}
				groups[gv] = plurals
			}
			if groups[gv][k.Plural] {
				out[k.Name] = v
				break
			}
		}
	}
	return out, nil
}

func (s *Source) resources(ctx context.Context, groupVersion string) (map[string]bool, error) {
	var list struct {
		Resources []struct {
			Name string `json:"name"`
		} `json:"resources"`
	}
	err := s.Get(ctx, "/apis/"+groupVersion, &list)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	out := map[string]bool{}
	for _, r := range list.Resources {
		if !strings.Contains(r.Name, "/") { // subresources
			out[r.Name] = true
		}
	}
	return out, nil
}

// watches are the reflectors that run.
type watches struct {
	all     sync.WaitGroup
	cancels map[string]func() // end one and wait for it
}

func (w *watches) running(name string) bool { return w.cancels[name] != nil }

func (w *watches) start(ctx context.Context, s *Source, k apiserver.Kind) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	w.cancels[k.Name] = func() { cancel(); <-ended }
	sh := s.expect(k)
	w.all.Go(func() {
		defer close(ended)
		defer cancel()
		follow(ctx, s, sh)
	})
}

func (w *watches) stop(name string) {
	w.cancels[name]()
	delete(w.cancels, name)
}
