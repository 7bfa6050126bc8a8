package v1alpha1

import (
	"strings"
	"testing"
)

// What a policy would not do as it reads is a mistake: the policy then denies.
func TestAccessFrom(t *testing.T) {
	for _, tt := range []struct {
		name string
		from AccessFrom
		want string // field of the mistake; "": none
	}{
		{"identity", AccessFrom{Identities: []string{"spiffe://cluster.local/ns/shop/sa/web"}}, ""},
		{"any of an account's namespace", AccessFrom{Identities: []string{"spiffe://cluster.local/ns/shop/sa/*"}}, ""},
		{"any of a trust domain", AccessFrom{Identities: []string{"spiffe://cluster.local/*"}}, ""},
		{"a trust domain is nobody", AccessFrom{Identities: []string{"spiffe://cluster.local"}}, "identities[0]"},
		{"no scheme", AccessFrom{Identities: []string{"cluster.local/ns/shop/sa/web"}}, "identities[0]"},
		{"star in the middle", AccessFrom{Identities: []string{"spiffe://cluster.local/ns/*/sa/web"}}, "identities[0]"},
		{"star alone", AccessFrom{Identities: []string{"*"}}, "identities[0]"},
		{"namespace", AccessFrom{Namespaces: []string{"shop-2"}}, ""},
		{"upper case", AccessFrom{Namespaces: []string{"shop", "Shop"}}, "namespaces[1]"},
		{"a wildcard", AccessFrom{Namespaces: []string{"shop-*"}}, "namespaces[0]"},
		{"two in one", AccessFrom{Namespaces: []string{"shop,admin"}}, "namespaces[0]"},
		{"too long", AccessFrom{Namespaces: []string{strings.Repeat("a", 64)}}, "namespaces[0]"},
		{"cidr", AccessFrom{CIDRs: []string{"10.0.0.0/8", "fd00::/8"}}, ""},
		{"address", AccessFrom{CIDRs: []string{"10.0.0.1"}}, "cidrs[0]"},
		{"nobody", AccessFrom{}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := AccessPolicy{Spec: AccessPolicySpec{Rules: []AccessRule{{Action: Deny, From: []AccessFrom{tt.from}}}}}
			want := "spec.rules[0].from[0]"
			if tt.want != "" {
				want += "." + tt.want
			}
			got := p.Validate()
			switch {
			case tt.want == "" && tt.name != "nobody":
				if len(got) > 0 {
					t.Errorf("mistakes %v, want none", got)
				}
			case len(got) != 1 || got[0].Field != want || got[0].Fix == "":
				t.Errorf("mistakes %v, want one of %s", got, want)
			}
		})
	}
}
