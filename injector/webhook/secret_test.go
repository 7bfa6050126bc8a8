package webhook

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heddle-mesh/heddle/internal/source"
)

// vault is a source that keeps one Secret, and the caBundle of the API server.
type vault struct {
	source.Source
	mu        sync.Mutex
	data      map[string][]byte
	version   int
	conflicts int
	stall     func() // between a read and the next write; nil: none
	bundle    []byte
	bundleErr error
	written   int // how often the caBundle was not right
}

func (v *vault) ReadSecret(context.Context, string, string) (map[string][]byte, string, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.data == nil {
		return nil, "", source.ErrNotFound
	}
	return maps.Clone(v.data), string(rune('0' + v.version)), nil
}

func (v *vault) WriteSecret(_ context.Context, _, _, version string, data map[string][]byte) error {
	if v.stall != nil {
		v.stall()
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	now := ""
	if v.data != nil {
		now = string(rune('0' + v.version))
	}
	if version != now {
		v.conflicts++
		return source.ErrConflict
	}
	v.data, v.version = maps.Clone(data), v.version+1
	return nil
}

func (v *vault) publish(_ context.Context, pem []byte) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.bundleErr != nil {
		return v.bundleErr
	}
	if !bytes.Equal(v.bundle, pem) {
		v.bundle = pem
		v.written++
	}
	return nil
}

func (v *vault) pool() *x509.CertPool {
	v.mu.Lock()
	defer v.mu.Unlock()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(v.bundle)
	return pool
}

func (v *vault) replica() *Certs {
	return NewCerts(CertConfig{Secret: &Secret{Source: v, Namespace: "heddle-system", Name: "tls"}, Names: names, Publish: v.publish})
}

// Two replicas that start in the same moment make one certificate, and over
// two years, at every look, each serves what the API server trusts at that
// moment.
func TestReplicasShare(t *testing.T) {
	const look = 24 * time.Hour
	synctest.Test(t, func(t *testing.T) {
		v := &vault{}
		replicas := []*Certs{v.replica(), v.replica()}
		var meet sync.WaitGroup // both have read that there is none before one writes
		meet.Add(2)
		v.stall = func() { meet.Done(); meet.Wait(); v.mu.Lock(); v.stall = nil; v.mu.Unlock() }
		ended := make(chan error, 2)
		for _, r := range replicas {
			go func() { ended <- r.step(t.Context()) }()
		}
		if err := errors.Join(<-ended, <-ended); err != nil {
			t.Fatal(err)
		}
		if v.conflicts != 1 {
			t.Errorf("%d conflicts", v.conflicts)
		}
		cas, most := map[string]bool{}, 0
		for since := time.Duration(0); since < 2*caLife; since += look {
			for i, r := range replicas {
				if i == 1 {
					time.Sleep(look / 2) // they do not look at once
				}
				if err := r.step(t.Context()); err != nil {
					t.Fatal(err)
				}
				// The other one has not looked again yet, and must be trusted too.
				for _, r := range replicas {
					verify(t, r.Leaf(), v.pool())
				}
				cas[r.Leaf().Issuer.CommonName] = true
			}
			most = max(most, bytes.Count(v.bundle, []byte("BEGIN")))
			time.Sleep(look / 2)
		}
		if replicas[0].Leaf().SerialNumber.Cmp(replicas[1].Leaf().SerialNumber) != 0 {
			t.Error("two certificates")
		}
		if len(cas) != 3 || most != 2 {
			t.Errorf("%d CAs, at most %d at once in the bundle", len(cas), most)
		}
	})
}

// Somebody overwrites the caBundle, deletes the Secret, and the API server
// goes away: each is mended within one look, and no replica changes what it
// serves.
func TestSecretAndBundleAreMended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vault{}
		c := v.replica()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- c.Run(ctx) }()
		<-c.Ready()
		time.Sleep(2 * certCheck)
		leaf, bundle := c.Leaf(), v.bundle
		if v.written != 1 || !bytes.Equal(bundle, c.Published()) {
			t.Errorf("written %d times", v.written)
		}

		v.mu.Lock()
		v.bundle = []byte("of a person who applied the chart again")
		v.mu.Unlock()
		time.Sleep(certCheck)
		synctest.Wait()
		if !bytes.Equal(v.bundle, bundle) || v.written != 2 {
			t.Errorf("the caBundle was not mended (%d)", v.written)
		}

		v.mu.Lock()
		before := v.data
		v.data = nil
		v.mu.Unlock()
		time.Sleep(certCheck)
		synctest.Wait()
		if !maps.EqualFunc(v.data, before, bytes.Equal) || c.Leaf() != leaf {
			t.Error("the Secret was not written again as it was")
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// While the API server cannot be told a new CA, no certificate of it is used.
func TestUntrustedIsNotServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vault{}
		c := v.replica()
		if err := c.step(t.Context()); err != nil {
			t.Fatal(err)
		}
		leaf := c.Leaf()
		v.data, v.bundleErr = nil, errors.New("forbidden")
		other := v.replica() // knows nothing of what was, so makes another CA
		if err := other.step(t.Context()); err == nil || other.Published() != nil {
			t.Error(err)
		}
		if err := c.step(t.Context()); err == nil || c.Leaf() != leaf {
			t.Errorf("%v; took a certificate that the API server does not trust", err)
		}
		v.bundleErr = nil
		if err := c.step(t.Context()); err != nil || c.Leaf() == leaf {
			t.Error(err)
		}
		verify(t, c.Leaf(), v.pool())
	})
}

// A Secret that somebody else fills, such as cert-manager, is used and never
// written.
func TestGivenSecret(t *testing.T) {
	made := &vault{}
	if err := made.replica().step(t.Context()); err != nil {
		t.Fatal(err)
	}
	v := &vault{data: map[string][]byte{certFile: made.data[certFile], keyFile: made.data[keyFile], givenCAFile: made.data[rootsFile]}}
	c := v.replica()
	if err := c.step(t.Context()); err != nil || v.version != 0 {
		t.Error(err, v.version)
	}
	verify(t, c.Leaf(), v.pool())
	v.data = map[string][]byte{certFile: made.data[certFile]}
	if err := v.replica().step(t.Context()); err == nil || v.version != 0 {
		t.Error("half a certificate", err)
	}
}
