// Package token issues service account tokens as Kubernetes' TokenRequest does
// (KEP-1205): JWTs bound to an audience, a time and a pod. It signs; who asks
// for which audience is the pod's spec and checked elsewhere. internal/lab
// calls it; internal/source/files verifies against the JWKS.
package token

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// Issuer is the iss claim, Kubernetes' default for cluster.local.
const Issuer = "https://kubernetes.default.svc.cluster.local"

const (
	// MinLifetime is the shortest that TokenRequest grants.
	MinLifetime = 10 * time.Minute
	// maxLifetime bounds it upwards: the lab does not live for years.
	maxLifetime = 48 * time.Hour
)

// Key signs the tokens of one lab. It lives in memory only: a lab's tokens end
// with it.
type Key struct {
	signer jose.Signer
	jwks   []byte
}

// NewKey makes a key, P-256.
func NewKey() (*Key, error) {
	priv, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the token key: %w", err)
	}
	pub := jose.JSONWebKey{Key: priv.Public(), Algorithm: string(jose.ES256), Use: "sig"}
	sum, err := pub.Thumbprint(crypto.SHA256)
	if err != nil {
		return nil, fmt.Errorf("name the token key: %w", err)
	}
	pub.KeyID = hex.EncodeToString(sum[:16])
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256,
		Key: jose.JSONWebKey{Key: priv, KeyID: pub.KeyID}}, nil)
	if err != nil {
		return nil, fmt.Errorf("make the token signer: %w", err)
	}
	jwks, err := json.MarshalIndent(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{pub}}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode the JWKS: %w", err)
	}
	return &Key{signer: signer, jwks: jwks}, nil
}

// JWKS is the public half (RFC 7517).
func (k *Key) JWKS() []byte { return k.jwks }

// Named is an object as a token names it.
type Named struct {
	Name string `json:"name"`
	UID  string `json:"uid"`
}

// Request is what a token says.
type Request struct {
	Namespace      string
	ServiceAccount Named
	Pod            Named
	Node           Named
	Audience       []string      // empty: the issuer, as the API server itself
	Lifetime       time.Duration // 0: one hour; clamped to 10 min .. 48 h
}

// bound is the claim "kubernetes.io".
type bound struct {
	Namespace      string `json:"namespace"`
	Node           *Named `json:"node,omitempty"`
	Pod            *Named `json:"pod,omitempty"`
	ServiceAccount Named  `json:"serviceaccount"`
}

// Issue signs a token that is valid from now and says when it ends.
func (k *Key) Issue(r Request) (string, time.Time, error) {
	if r.Namespace == "" || r.ServiceAccount.Name == "" {
		return "", time.Time{}, fmt.Errorf("issue a token: no service account named")
	}
	if r.Lifetime == 0 {
		r.Lifetime = time.Hour
	}
	if len(r.Audience) == 0 {
		r.Audience = []string{Issuer}
	}
	now := time.Now()
	expiry := now.Add(min(max(r.Lifetime, MinLifetime), maxLifetime))
	b := bound{Namespace: r.Namespace, ServiceAccount: r.ServiceAccount}
	if r.Pod.UID != "" {
		b.Pod = &r.Pod
	}
	if r.Node.Name != "" {
		b.Node = &r.Node
	}
	id := make([]byte, 16)
	rand.Read(id) // never fails (crypto/rand)
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	claims := jwt.Claims{
		Issuer:    Issuer,
		Subject:   "system:serviceaccount:" + r.Namespace + ":" + r.ServiceAccount.Name,
		IssuedAt:  jwt.NewNumericDate(now),
		NotBefore: jwt.NewNumericDate(now),
		Expiry:    jwt.NewNumericDate(expiry),
		ID:        fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:]),
	}
	s, err := jwt.Signed(k.signer).Claims(claims).Claims(map[string]any{
		"aud":           r.Audience, // always a list, as the API server writes it
		"kubernetes.io": b,
	}).Serialize()
	if err != nil {
		return "", time.Time{}, fmt.Errorf("sign a token for %s: %w", claims.Subject, err)
	}
	return s, expiry, nil
}
