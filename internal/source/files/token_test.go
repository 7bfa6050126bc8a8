package files

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/heddle-mesh/heddle/internal/source"
)

const audience = "heddle.dev/controlplane"

type token map[string]any

func sign(t *testing.T, alg jose.SignatureAlgorithm, key any, kid string, c token) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: jose.JSONWebKey{Key: key, KeyID: kid}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := jwt.Signed(signer).Claims(map[string]any(c)).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func good(change ...func(token)) token {
	now := time.Now()
	c := token{
		"iss": "https://lab", "sub": "system:serviceaccount:shop:web", "aud": []string{audience},
		"exp": now.Add(time.Hour).Unix(), "nbf": now.Unix(), "iat": now.Unix(),
		"kubernetes.io": map[string]any{
			"namespace": "shop", "pod": map[string]any{"name": "web-1", "uid": "uid-1"},
			"serviceaccount": map[string]any{"name": "web", "uid": "sa-1"},
		},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func pod(name, uid string) func(token) {
	return func(c token) { c["kubernetes.io"].(map[string]any)["pod"] = map[string]any{"name": name, "uid": uid} }
}

func set(k string, v any) func(token) { return func(c token) { c[k] = v } }

func TestReviewToken(t *testing.T) {
	dir := t.TempDir()
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	forger, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rs, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	keys := jose.JSONWebKeySet{Keys: []jose.JSONWebKey{
		{Key: &ec.PublicKey, KeyID: "ec", Algorithm: "ES256", Use: "sig"}, {Key: &rs.PublicKey, KeyID: "rs", Use: "sig"},
	}}
	raw, err := json.Marshal(keys)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, jwksFile), string(raw))
	write(t, filepath.Join(dir, "pods.yaml"), `
apiVersion: v1
kind: ServiceAccount
metadata: {name: web, namespace: shop, uid: sa-1}
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: shop, uid: uid-1}
spec: {serviceAccountName: web}
---
apiVersion: v1
kind: Pod
metadata: {name: other-1, namespace: shop, uid: uid-2}
spec: {serviceAccountName: other}
---
apiVersion: v1
kind: Pod
metadata: {name: done, namespace: shop, uid: uid-3}
spec: {serviceAccountName: web}
status: {phase: Succeeded}
`)
	d := start(t, dir)
	d.cfg.Issuer = "https://lab"
	es := jose.ES256
	for _, tt := range []struct{ name, token, want string }{
		{"good", sign(t, es, ec, "ec", good()), ""},
		{"good RS256", sign(t, jose.RS256, rs, "rs", good()), ""},
		{"good without key id", sign(t, es, ec, "", good()), ""},
		{"forged with a known key id", sign(t, es, forger, "ec", good()), "forged"},
		{"forged", sign(t, es, forger, "", good()), "forged"},
		{"unknown key id", sign(t, es, ec, "x", good()), "forged"},
		{"the public key as a secret", sign(t, jose.HS256, []byte(strings.Repeat("x", 32)), "ec", good()), "malformed"},
		{"PS256", sign(t, jose.PS256, rs, "rs", good()), "malformed"},
		{"not signed", "eyJhbGciOiJub25lIn0.e30.", "malformed"},
		{"nonsense", "x", "malformed"},
		{"empty", "", "malformed"},
		{"too long", strings.Repeat("x", maxToken+1), "malformed"},
		{"expired", sign(t, es, ec, "ec", good(set("exp", time.Now().Add(-time.Minute).Unix()))), "expired"},
		{"expired within the leeway", sign(t, es, ec, "ec", good(set("exp", time.Now().Add(-leeway/2).Unix()))), ""},
		{"not yet", sign(t, es, ec, "ec", good(set("nbf", time.Now().Add(time.Minute).Unix()))), "not yet valid"},
		{"never expires", sign(t, es, ec, "ec", good(func(c token) { delete(c, "exp") })), "malformed"},
		{"other audience", sign(t, es, ec, "ec", good(set("aud", []string{"https://kubernetes"}))), "other audience"},
		{"no audience", sign(t, es, ec, "ec", good(func(c token) { delete(c, "aud") })), "other audience"},
		{"other issuer", sign(t, es, ec, "ec", good(set("iss", "x"))), "other issuer"},
		{"subject of another", sign(t, es, ec, "ec", good(set("sub", "system:serviceaccount:shop:admin"))), "malformed"},
		{"no claims of Kubernetes", sign(t, es, ec, "ec", good(func(c token) { delete(c, "kubernetes.io") })), "malformed"},
		{"pod gone", sign(t, es, ec, "ec", good(pod("web-9", "uid-9"))), "pod gone"},
		{"pod over", sign(t, es, ec, "ec", good(pod("done", "uid-3"))), "pod gone"},
		{"pod replaced", sign(t, es, ec, "ec", good(pod("web-1", "uid-0"))), "other pod's"},
		{"other pod's", sign(t, es, ec, "ec", good(pod("other-1", "uid-2"))), "other pod's"},
		{"not bound to a pod", sign(t, es, ec, "ec", good(pod("", ""))), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			info, err := d.ReviewToken(t.Context(), tt.token, audience)
			switch {
			case tt.want == "" && err != nil:
				t.Error(err)
			case tt.want == "" && (info.Namespace != "shop" || info.ServiceAccount != "web"):
				t.Errorf("%+v", info)
			case tt.want != "" && (!errors.Is(err, source.ErrToken) || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("error %v, want %s", err, tt.want)
			}
		})
	}
	// A token that is here before its pod's manifest waits for it.
	early := sign(t, es, ec, "ec", good(pod("early", "uid-e")))
	answer := make(chan error)
	go func() {
		_, err := d.ReviewToken(t.Context(), early, audience)
		answer <- err
	}()
	put(t, filepath.Join(dir, "early.yaml"), "apiVersion: v1\nkind: Pod\nmetadata: {name: early, namespace: shop, uid: uid-e}\nspec: {serviceAccountName: web}\n")
	if err := <-answer; err != nil {
		t.Errorf("early: %v", err)
	}
	// Keys are read anew when their file changes; a torn file changes nothing.
	write(t, filepath.Join(dir, jwksFile), string(raw[:20]))
	if _, err := d.ReviewToken(t.Context(), sign(t, es, ec, "ec", good()), audience); err != nil {
		t.Errorf("with a torn key file: %v", err)
	}
	put(t, filepath.Join(dir, jwksFile), `{"keys":[]}`)
	if _, err := d.ReviewToken(t.Context(), sign(t, es, ec, "ec", good()), audience); !errors.Is(err, source.ErrToken) {
		t.Errorf("with no keys: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, jwksFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := d.ReviewToken(t.Context(), sign(t, es, ec, "ec", good()), audience); !errors.Is(err, source.ErrToken) {
		t.Errorf("without the file: %v", err)
	}
}

func TestSecrets(t *testing.T) {
	dir := t.TempDir()
	f, g := New(Config{Dir: dir}), New(Config{Dir: dir})
	ctx := t.Context()
	if _, v, err := f.ReadSecret(ctx, "sys", "ca"); v != "" || !errors.Is(err, source.ErrNotFound) {
		t.Errorf("absent: %q %v", v, err)
	}
	if err := f.WriteSecret(ctx, "sys", "ca", "", map[string][]byte{"key": {1, 2}}); err != nil {
		t.Fatal(err)
	}
	if err := g.WriteSecret(ctx, "sys", "ca", "", map[string][]byte{"key": {3}}); !errors.Is(err, source.ErrConflict) {
		t.Errorf("second to create: %v", err)
	}
	data, v, err := g.ReadSecret(ctx, "sys", "ca")
	if err != nil || len(data["key"]) != 2 {
		t.Fatalf("%v %v", data, err)
	}
	fi, err := os.Stat(filepath.Join(dir, "secrets", "sys.ca.json"))
	if err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("mode %v %v", fi.Mode(), err)
	}
	// Of many writers with one version, one wins.
	won := make(chan error)
	for i := range 8 {
		go func() {
			won <- []*Files{f, g}[i%2].WriteSecret(ctx, "sys", "ca", v, map[string][]byte{"key": {byte(i + 10)}})
		}()
	}
	wins := 0
	for range 8 {
		if err := <-won; err == nil {
			wins++
		} else if !errors.Is(err, source.ErrConflict) {
			t.Error(err)
		}
	}
	if wins != 1 {
		t.Errorf("%d writers won", wins)
	}
	for _, name := range []string{"", "../x", "a/b", ".hidden"} {
		if err := f.WriteSecret(ctx, "sys", name, "", nil); err == nil {
			t.Errorf("wrote secret %q", name)
		}
	}
}

func TestStatusAndEvents(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), ns("a"))
	d := start(t, dir)
	ref := source.Ref{Kind: "AccessPolicy", Namespace: "shop", Name: "p"}
	if err := d.WriteStatus(t.Context(), ref, []source.Condition{{Type: "Accepted", Status: "False", Reason: "Broken", Message: "m"}}); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "status", "AccessPolicy.shop.p.json"))
	if err != nil || !strings.Contains(string(b), `"Accepted"`) {
		t.Errorf("%s %v", b, err)
	}
	if err := d.WriteStatus(t.Context(), source.Ref{Kind: "X", Name: "../../etc"}, nil); err == nil {
		t.Error("wrote outside the folder")
	}
	long := strings.Repeat("x", 10_000)
	for range 2*maxEvents/10_000 + 5 {
		d.Event(t.Context(), ref, "Reason", long)
	}
	var total int64
	for _, n := range []string{"events.jsonl", "events.old.jsonl"} {
		fi, err := os.Stat(filepath.Join(dir, "status", n))
		if err != nil {
			t.Fatal(err)
		}
		total += fi.Size()
	}
	if total > 2*maxEvents {
		t.Errorf("events take %d bytes", total)
	}
	// None of it is read as manifests.
	if s := d.Snapshot(); len(s.Problems) != 0 || !has("a")(s) {
		t.Errorf("%s", show(s))
	}
}
