package token

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

func key(t *testing.T) (*Key, *jose.JSONWebKeySet) {
	t.Helper()
	k, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	var set jose.JSONWebKeySet
	if err := json.Unmarshal(k.JWKS(), &set); err != nil {
		t.Fatal(err)
	}
	return k, &set
}

// claims verifies a token against the JWKS and gives all its claims.
func claims(t *testing.T, set *jose.JSONWebKeySet, s string) map[string]any {
	t.Helper()
	parsed, err := jwt.ParseSigned(s, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]any
	if err := parsed.Claims(set, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestClaimsAreKubernetes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, set := key(t)
		start := time.Now()
		s, expiry, err := k.Issue(Request{
			Namespace: "shop", ServiceAccount: Named{"web", "sa-uid"}, Pod: Named{"web-1", "pod-uid"}, Node: Named{"node1", "node-uid"},
			Audience: []string{"heddle.dev/controlplane"}, Lifetime: time.Hour,
		})
		if err != nil {
			t.Fatal(err)
		}
		got := claims(t, set, s)
		jti, _ := got["jti"].(string)
		if len(jti) != 36 {
			t.Errorf("jti %q", jti)
		}
		delete(got, "jti")
		b, _ := json.Marshal(got)
		at := start.Unix()
		want := map[string]any{
			"iss": Issuer, "sub": "system:serviceaccount:shop:web", "aud": []string{"heddle.dev/controlplane"},
			"iat": at, "nbf": at, "exp": at + 3600,
			"kubernetes.io": map[string]any{"namespace": "shop", "serviceaccount": Named{"web", "sa-uid"}, "pod": Named{"web-1", "pod-uid"}, "node": Named{"node1", "node-uid"}},
		}
		wantJSON, _ := json.Marshal(want)
		if string(b) != canonical(t, wantJSON) {
			t.Errorf("got  %s\nwant %s", b, wantJSON)
		}
		if expiry != start.Add(time.Hour) {
			t.Errorf("expiry %v", expiry)
		}
	})
}

func canonical(t *testing.T, b []byte) string {
	t.Helper()
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	out, _ := json.Marshal(v)
	return string(out)
}

func TestLifetimeAndBinding(t *testing.T) {
	k, set := key(t)
	for _, c := range []struct {
		asked, want time.Duration
	}{{0, time.Hour}, {time.Second, MinLifetime}, {1000 * time.Hour, maxLifetime}} {
		s, _, err := k.Issue(Request{Namespace: "a", ServiceAccount: Named{"b", "c"}, Lifetime: c.asked})
		if err != nil {
			t.Fatal(err)
		}
		got := claims(t, set, s)
		if life := got["exp"].(float64) - got["iat"].(float64); life != c.want.Seconds() {
			t.Errorf("asked %v: %vs, want %v", c.asked, life, c.want)
		}
		if aud := got["aud"].([]any); !slices.Equal(aud, []any{Issuer}) {
			t.Errorf("audience %v", aud)
		}
		bound := got["kubernetes.io"].(map[string]any)
		if _, has := bound["pod"]; has {
			t.Error("a token for no pod names one")
		}
	}
	if _, _, err := k.Issue(Request{Namespace: "a"}); err == nil {
		t.Error("a token for nobody")
	}
}

func TestTheJWKSHasNoPrivateKey(t *testing.T) {
	k, set := key(t)
	if len(set.Keys) != 1 || !set.Keys[0].IsPublic() || strings.Contains(string(k.JWKS()), `"d"`) {
		t.Errorf("%s", k.JWKS())
	}
	_, other := key(t)
	s, _, err := k.Issue(Request{Namespace: "a", ServiceAccount: Named{"b", "c"}})
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := jwt.ParseSigned(s, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		t.Fatal(err)
	}
	if err := parsed.Claims(other, &map[string]any{}); err == nil {
		t.Error("another lab's key verifies it")
	}
}
