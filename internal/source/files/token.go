package files

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/heddle-mesh/heddle/internal/source"
)

const (
	// jwksFile holds the public keys of the tokens' issuer (RFC 7517).
	jwksFile = "jwks.json"
	// leeway forgives clocks that differ: ten seconds is far more than NTP
	// leaves and far less than a token's hour.
	leeway = 10 * time.Second
	// catchUp is how long a token may be ahead of its pod's manifest: longer
	// than a change rests before it is taken over.
	catchUp = settle + 200*time.Millisecond
	// maxToken bounds a token before it is parsed; projected ones have 1-2 KB.
	maxToken = 16 << 10
)

// claims of a projected service account token.
type claims struct {
	Kubernetes struct {
		Namespace string `json:"namespace"`
		Pod       struct {
			Name string `json:"name"`
			UID  string `json:"uid"`
		} `json:"pod"`
		ServiceAccount struct {
			Name string `json:"name"`
			UID  string `json:"uid"`
		} `json:"serviceaccount"`
	} `json:"kubernetes.io"`
}

// keyCache holds the keys until their file changes.
type keyCache struct {
	mu   sync.Mutex
	stat stat
	set  *jose.JSONWebKeySet
}

func refused(format string, args ...any) error {
	return fmt.Errorf("%w: %w", source.ErrToken, fmt.Errorf(format, args...))
}

// ReviewToken verifies a JWT as Kubernetes projects them: signed with RS256 or
// ES256 by a key of jwks.json, in date, for the audience, and of a pod that
// still exists with that UID and service account. A refusal wraps
// source.ErrToken and says which of these failed.
func (f *Files) ReviewToken(ctx context.Context, token, audience string) (source.TokenInfo, error) {
	if len(token) > maxToken {
		return source.TokenInfo{}, refused("malformed: longer than %d bytes", maxToken)
	}
	parsed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.RS256, jose.ES256})
	if err != nil {
		return source.TokenInfo{}, refused("malformed: %w", err)
	}
	keys, err := f.keySet()
	if err != nil {
		return source.TokenInfo{}, fmt.Errorf("review token: %w", err)
	}
	std, own, err := verify(parsed, keys)
	if err != nil {
		return source.TokenInfo{}, err
	}
	if err := f.inDate(std, audience); err != nil {
		return source.TokenInfo{}, err
	}
	k := own.Kubernetes
	if k.Namespace == "" || k.ServiceAccount.Name == "" {
		return source.TokenInfo{}, refused("malformed: names no service account")
	}
	if sub := "system:serviceaccount:" + k.Namespace + ":" + k.ServiceAccount.Name; std.Subject != "" && std.Subject != sub {
		return source.TokenInfo{}, refused("malformed: subject %q is not %q", std.Subject, sub)
	}
	info := source.TokenInfo{Namespace: k.Namespace, ServiceAccount: k.ServiceAccount.Name, PodName: k.Pod.Name, PodUID: k.Pod.UID, Expiry: std.Expiry.Time()}
	return info, f.aliveSoon(ctx, info, k.ServiceAccount.UID)
}

// aliveSoon gives a pod that started just now the time until its manifest is
// seen: its token may be here first.
func (f *Files) aliveSoon(ctx context.Context, t source.TokenInfo, accountUID string) error {
	deadline := time.NewTimer(catchUp)
	defer deadline.Stop()
	for {
		next := f.upcoming()
		err := f.alive(t, accountUID)
		if err == nil {
			return nil
		}
		select {
		case <-next:
		case <-deadline.C:
			return err
		case <-ctx.Done():
			return err
		}
	}
}

// verify tries the key that the token names, or all if it names none.
func verify(t *jwt.JSONWebToken, keys *jose.JSONWebKeySet) (jwt.Claims, claims, error) {
	candidates := keys.Keys
	if len(t.Headers) == 1 && t.Headers[0].KeyID != "" {
		candidates = keys.Key(t.Headers[0].KeyID)
	}
	for _, key := range candidates {
		if !key.IsPublic() || !key.Valid() || key.Algorithm != "" && key.Algorithm != t.Headers[0].Algorithm {
			continue
		}
		var std jwt.Claims
		var own claims
		if err := t.Claims(key.Key, &std, &own); err == nil {
			return std, own, nil
		}
	}
	return jwt.Claims{}, claims{}, refused("forged: no key of %s made its signature", jwksFile)
}

func (f *Files) inDate(c jwt.Claims, audience string) error {
	now := time.Now()
	if c.Expiry == nil {
		return refused("malformed: it never expires")
	}
	expected := jwt.Expected{Time: now, AnyAudience: jwt.Audience{audience}, Issuer: f.cfg.Issuer}
	err := c.ValidateWithLeeway(expected, leeway)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, jwt.ErrInvalidAudience):
		return refused("other audience: it is for %q, not %q", []string(c.Audience), audience)
	case errors.Is(err, jwt.ErrInvalidIssuer):
		return refused("other issuer: %q is not %q", c.Issuer, f.cfg.Issuer)
	case errors.Is(err, jwt.ErrExpired):
		return refused("expired: at %s, now %s", c.Expiry.Time().UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	return refused("not yet valid: now %s: %w", now.UTC().Format(time.RFC3339), err)
}

// alive checks the token's pod and service account against the snapshot. A
// token that is bound to no pod lives as long as its service account.
func (f *Files) alive(t source.TokenInfo, accountUID string) error {
	s := f.Snapshot()
	if s == nil {
		return fmt.Errorf("review token: the folder was not read yet")
	}
	account := s.ServiceAccounts[source.Key{Namespace: t.Namespace, Name: t.ServiceAccount}]
	if account != nil && account.UID != "" && accountUID != "" && account.UID != accountUID {
		return refused("service account gone: %s/%s is another one now", t.Namespace, t.ServiceAccount)
	}
	if t.PodUID == "" {
		if account == nil {
			return refused("service account gone: %s/%s", t.Namespace, t.ServiceAccount)
		}
		return nil
	}
	pod := s.Pods[source.Key{Namespace: t.Namespace, Name: t.PodName}]
	switch {
	case pod == nil:
		return refused("pod gone: %s/%s", t.Namespace, t.PodName)
	case pod.UID != t.PodUID:
		return refused("other pod's: %s/%s has UID %s now, the token %s", t.Namespace, t.PodName, pod.UID, t.PodUID)
	case pod.ServiceAccount != t.ServiceAccount:
		return refused("other pod's: %s/%s runs as %s, the token says %s", t.Namespace, t.PodName, pod.ServiceAccount, t.ServiceAccount)
	case pod.Phase == "Succeeded" || pod.Phase == "Failed":
		return refused("pod gone: %s/%s is over (%s)", t.Namespace, t.PodName, pod.Phase)
	}
	return nil
}

// keySet reads jwks.json if it changed. A file that cannot be read keeps the
// keys last read, so that a half-written one refuses nobody.
func (f *Files) keySet() (*jose.JSONWebKeySet, error) {
	c := &f.keys
	c.mu.Lock()
	defer c.mu.Unlock()
	path := filepath.Join(f.cfg.Dir, jwksFile)
	fi, err := os.Stat(path)
	if err == nil && c.set != nil && statOf(fi) == c.stat {
		return c.set, nil
	}
	if err != nil && errors.Is(err, os.ErrNotExist) {
		c.set = nil // taken away on purpose: nobody is trusted
		return nil, refused("no keys: %s is missing", jwksFile)
	}
	data, s, err := readStable(path)
	set := &jose.JSONWebKeySet{}
	if err == nil {
		err = json.Unmarshal(data, set)
	}
	switch {
	case err == nil:
		c.set, c.stat = set, s
	case c.set == nil:
		return nil, fmt.Errorf("read %s: %w", jwksFile, err)
	}
	return c.set, nil
}
