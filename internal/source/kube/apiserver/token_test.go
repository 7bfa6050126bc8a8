package apiserver

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/heddle-mesh/heddle/internal/meshtest/kubeapi"
	"github.com/heddle-mesh/heddle/internal/source"
)

func jwt(claims string) string {
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".sig"
}

func TestReviewToken(t *testing.T) {
	type m = map[string]any
	user := func(name string, extra m) m { return m{"username": name, "extra": extra} }
	bound := m{podNameKey: []string{"web-1"}, podUIDKey: []string{"u-1"}}
	for _, tt := range []struct {
		name, token string
		status      m
		want        source.TokenInfo
		refused     string
	}{
		{"good", jwt(`{"exp":1800000000}`), m{"authenticated": true, "audiences": []string{"heddle"}, "user": user("system:serviceaccount:shop:web", bound)},
			source.TokenInfo{Namespace: "shop", ServiceAccount: "web", PodName: "web-1", PodUID: "u-1", Expiry: time.Unix(1800000000, 0)}, ""},
		{"bound to no pod, opaque", "opaque", m{"authenticated": true, "audiences": []string{"other", "heddle"}, "user": user("system:serviceaccount:shop:web", nil)},
			source.TokenInfo{Namespace: "shop", ServiceAccount: "web"}, ""},
		{"strange expiry", jwt(`{"exp":1e300}`), m{"authenticated": true, "audiences": []string{"heddle"}, "user": user("system:serviceaccount:shop:web", nil)},
			source.TokenInfo{Namespace: "shop", ServiceAccount: "web"}, ""},
		{"not authenticated", "x", m{"error": "[invalid bearer token]"}, source.TokenInfo{}, "invalid bearer token"},
		{"not authenticated, no word why", "x", m{}, source.TokenInfo{}, "does not accept it"},
		{"error and yet authenticated false", "x", m{"authenticated": false, "audiences": []string{"heddle"}, "user": user("system:serviceaccount:shop:web", bound)}, source.TokenInfo{}, "does not accept it"},
		{"wrong audience", "x", m{"authenticated": true, "audiences": []string{"kubernetes"}, "user": user("system:serviceaccount:shop:web", bound)}, source.TokenInfo{}, "audience"},
		{"a server that knows no audiences", "x", m{"authenticated": true, "user": user("system:serviceaccount:shop:web", bound)}, source.TokenInfo{}, "audience"},
		{"a person", "x", m{"authenticated": true, "audiences": []string{"heddle"}, "user": user("alice", nil)}, source.TokenInfo{}, `"alice" is no service account`},
		{"a node", "x", m{"authenticated": true, "audiences": []string{"heddle"}, "user": user("system:node:n1", nil)}, source.TokenInfo{}, "no service account"},
		{"half an account", "x", m{"authenticated": true, "audiences": []string{"heddle"}, "user": user("system:serviceaccount:shop", nil)}, source.TokenInfo{}, "no service account"},
		{"empty account", "x", m{"authenticated": true, "audiences": []string{"heddle"}, "user": user("system:serviceaccount:shop:", nil)}, source.TokenInfo{}, "no service account"},
		{"half a pod", "x", m{"authenticated": true, "audiences": []string{"heddle"}, "user": user("system:serviceaccount:shop:web", m{podNameKey: []string{"p"}})}, source.TokenInfo{}, "half of a pod"},
		{"two pods", "x", m{"authenticated": true, "audiences": []string{"heddle"}, "user": user("system:serviceaccount:shop:web", m{podNameKey: []string{"p"}, podUIDKey: []string{"1", "2"}})}, source.TokenInfo{}, "half of a pod"},
		{"empty", "", nil, source.TokenInfo{}, "empty"},
		{"huge", strings.Repeat("x", maxToken+1), nil, source.TokenInfo{}, "malformed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *kubeapi.Server, c *Client) {
				s.Review = func(token string, audiences []string) map[string]any {
					if token != tt.token || len(audiences) != 1 || audiences[0] != "heddle" {
						t.Errorf("reviewed %q for %v", token, audiences)
					}
					return tt.status
				}
				got, err := c.ReviewToken(t.Context(), tt.token, "heddle")
				if got != tt.want {
					t.Errorf("got %+v, want %+v", got, tt.want)
				}
				switch {
				case tt.refused == "" && err != nil:
					t.Errorf("refused: %v", err)
				case tt.refused != "" && (!errors.Is(err, source.ErrToken) || !strings.Contains(err.Error(), tt.refused)):
					t.Errorf("error %v, want a refusal with %q", err, tt.refused)
				}
			})
		})
	}
}

// An API server that cannot be asked refuses nobody: the peer tries again.
func TestReviewTokenAway(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubeapi.Server, c *Client) {
		s.Down()
		if _, err := c.ReviewToken(t.Context(), "x", "heddle"); err == nil || errors.Is(err, source.ErrToken) {
			t.Errorf("error %v", err)
		}
		if _, err := c.ReviewToken(t.Context(), "x", ""); !errors.Is(err, source.ErrToken) {
			t.Errorf("without an audience: %v", err)
		}
	})
}

func FuzzExpiry(f *testing.F) {
	for _, s := range []string{jwt(`{"exp":1800000000}`), jwt(`{"exp":-1}`), jwt(`{}`), "a.b.c", "..", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, token string) {
		if e := expiry(token); e.Year() > 9999 {
			t.Errorf("%q ends in %d", token, e.Year())
		}
	})
}
