package trace

import "bytes"

// validState judges a tracestate: at most 32 members of the form key=value,
// no key twice (W3C Trace Context, 3.3.1).
func validState(v []byte) bool {
	for n, rest := 0, v; ; n++ {
		member, after, more := bytes.Cut(rest, []byte{','})
		member = bytes.Trim(member, " \t")
		if len(member) > 0 { // empty members are allowed, and count
			key, value, ok := bytes.Cut(member, []byte{'='})
			if !ok || !validKey(key) || !validValue(value) || hasKey(after, key) {
				return false
			}
		}
		if n == maxMembers {
			return false
		}
		if !more {
			return true
		}
		rest = after
	}
}

// hasKey tells whether a later member has the same key.
func hasKey(rest, key []byte) bool {
	for len(rest) > 0 {
		var member []byte
		member, rest, _ = bytes.Cut(rest, []byte{','})
		member = bytes.Trim(member, " \t")
		if k, _, ok := bytes.Cut(member, []byte{'='}); ok && bytes.Equal(k, key) {
			return true
		}
	}
	return false
}

// validKey: a lower-case letter (before an @ also a digit) and then letters,
// digits and _-*/, 256 at most; with @, a tenant of 241 and a system of 14.
func validKey(k []byte) bool {
	tenant, system, multi := bytes.Cut(k, []byte{'@'})
	if multi {
		return len(tenant) <= 241 && len(system) <= 14 && keyText(tenant, true) && keyText(system, false)
	}
	return len(k) <= 256 && keyText(k, false)
}

func keyText(k []byte, digitFirst bool) bool {
	for i, c := range k {
		letter, digit := c >= 'a' && c <= 'z', c >= '0' && c <= '9'
		switch {
		case letter, digit && (i > 0 || digitFirst):
		case i > 0 && (c == '_' || c == '-' || c == '*' || c == '/'):
		default:
			return false
		}
	}
	return len(k) > 0
}

// validValue: 1 to 256 printable characters without comma and equals sign; the
// last is no space.
func validValue(v []byte) bool {
	for _, c := range v {
		if c < ' ' || c > '~' || c == ',' || c == '=' {
			return false
		}
	}
	return len(v) > 0 && len(v) <= 256 && v[len(v)-1] != ' '
}
