package trace

import (
	"strings"
	"testing"
)

func FuzzParent(f *testing.F) {
	for _, s := range []string{good + "01", good + "00", "cc-" + traceID + "-" + parentID + "-01-x", "ff-" + traceID, ""} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, v []byte) {
		c, ok := parseParent(v)
		if !ok {
			if c != (context{}) {
				t.Errorf("%q: not taken, and something is left: %v", v, c)
			}
			return
		}
		out := strings.TrimSuffix(strings.TrimPrefix(string(c.appendParent(nil, c.parent)), "traceparent: "), "\r\n")
		again, ok := parseParent([]byte(out))
		if !ok || again != c || out[3:52] != string(v[3:52]) {
			t.Errorf("%q is written as %q", v, out)
		}
	})
}

func FuzzB3(f *testing.F) {
	for _, s := range []string{"0", "1", "d", traceID + "-" + parentID, traceID + "-" + parentID + "-1-" + parentID, "-", "--", ""} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, v []byte) {
		c, decided, ok := parseB3(v)
		hasIDs := c.trace != [16]byte{} && c.parent != [8]byte{}
		if !ok && (decided || c.trace != [16]byte{}) || ok && !hasIDs && !decided || ok && len(v) > 1 && !hasIDs {
			t.Errorf("%q gives %v, %v, %v", v, c, decided, ok)
		}
	})
}

func FuzzState(f *testing.F) {
	for _, s := range []string{"a=1", "a=1,b=2", "t@s=x", ",,", "a=1,a=2", "a= ", "=", strings.Repeat("a=b,", 40)} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, v []byte) {
		if !validState(v) {
			return
		}
		keys := map[string]bool{}
		members := strings.Split(string(v), ",")
		for _, m := range members {
			m = strings.Trim(m, " \t")
			if m == "" {
				continue
			}
			k, value, ok := strings.Cut(m, "=")
			if !ok || k == "" || value == "" || strings.Contains(value, "=") || keys[k] {
				t.Errorf("%q is taken, with member %q", v, m)
			}
			keys[k] = true
		}
		if len(members) > maxMembers {
			t.Errorf("%q is taken: %d members", v, len(members))
		}
	})
}
