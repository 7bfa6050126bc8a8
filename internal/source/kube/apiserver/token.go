package apiserver

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/heddle-mesh/heddle/internal/source"
)

const (
	// maxToken bounds a token before it is sent on; projected ones have 1-2 KB.
	maxToken = 16 << 10
	// The names under which a TokenReview tells of a bound pod
	// (k8s.io/apiserver/pkg/authentication/serviceaccount).
	podNameKey = "authentication.kubernetes.io/pod-name"
	podUIDKey  = "authentication.kubernetes.io/pod-uid"
)

// tokenReview is what we use of authentication.k8s.io/v1 TokenReview.
type tokenReview struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Spec       struct {
		Token     string   `json:"token"`
		Audiences []string `json:"audiences"`
	} `json:"spec"`
	Status struct {
		Authenticated bool     `json:"authenticated"`
		Error         string   `json:"error"`
		Audiences     []string `json:"audiences"`
		User          struct {
			Username string              `json:"username"`
			Extra    map[string][]string `json:"extra"`
		} `json:"user"`
	} `json:"status,omitzero"`
}

func refused(format string, args ...any) error {
	return fmt.Errorf("%w: %w", source.ErrToken, fmt.Errorf(format, args...))
}

// ReviewToken asks the API server whose token it is; it also knows whether the
// pod and the service account are still there. A refusal wraps
// source.ErrToken; any other error means that the API server could not be
// asked.
func (c *Client) ReviewToken(ctx context.Context, token, audience string) (source.TokenInfo, error) {
	switch {
	case audience == "":
		return source.TokenInfo{}, refused("no audience to review it for")
	case token == "":
		return source.TokenInfo{}, refused("it is empty")
	case len(token) > maxToken:
		return source.TokenInfo{}, refused("malformed: longer than %d bytes", maxToken)
	}
	r := tokenReview{APIVersion: "authentication.k8s.io/v1", Kind: "TokenReview"}
	r.Spec.Token, r.Spec.Audiences = token, []string{audience}
	var answer tokenReview
	err := c.do(ctx, call{method: http.MethodPost, path: "/apis/authentication.k8s.io/v1/tokenreviews", body: r}, &answer)
	if err != nil {
		return source.TokenInfo{}, fmt.Errorf("review token: %w", err)
	}
	return judge(&answer, token, audience)
}

func judge(r *tokenReview, token, audience string) (source.TokenInfo, error) {
	st := &r.Status
	switch {
	case !st.Authenticated && st.Error != "":
		return source.TokenInfo{}, refused("the API server does not accept it: %s", st.Error)
	case !st.Authenticated:
		return source.TokenInfo{}, refused("the API server does not accept it")
	case !slices.Contains(st.Audiences, audience):
		// A server that knows no audiences accepts tokens for any.
		return source.TokenInfo{}, refused("it is not for audience %q", audience)
	}
	account, ok := strings.CutPrefix(st.User.Username, "system:serviceaccount:")
	namespace, name, both := strings.Cut(account, ":")
	if !ok || !both || namespace == "" || name == "" {
		return source.TokenInfo{}, refused("%q is no service account", st.User.Username)
	}
	pod, uid := first(st.User.Extra[podNameKey]), first(st.User.Extra[podUIDKey])
	if (pod == "") != (uid == "") {
		return source.TokenInfo{}, refused("it names half of a pod: name %q, uid %q", pod, uid)
	}
	return source.TokenInfo{Namespace: namespace, ServiceAccount: name, PodName: pod, PodUID: uid, Expiry: expiry(token)}, nil
}

func first(list []string) string {
	if len(list) != 1 {
		return "" // several pods are none
	}
	return list[0]
}

// expiry reads when a token that the API server has accepted ends (RFC 7519
// §4.1.4); zero: it does not say.
func expiry(token string) time.Time {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return time.Time{}
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	var claims struct {
		Exp float64 `json:"exp"`
	}
	if err != nil || json.Unmarshal(text, &claims) != nil || claims.Exp <= 0 || claims.Exp > maxExpiry {
		return time.Time{}
	}
	return time.Unix(int64(claims.Exp), 0)
}

// maxExpiry is the year 9999, beyond which time.Time has no JSON form.
const maxExpiry = 253402300799
