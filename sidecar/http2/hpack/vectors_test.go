package hpack

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
)

// vectors are the examples of RFC 7541, appendix C: blocks one after the other,
// what they say, and the table after each, newest first.
var vectors = []struct {
	name  string
	table uint32 // 0: as at the start
	block string
	want  string
	after string
	size  uint32
}{
	{"C.2.1", 0, "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572", "custom-key: custom-header", "custom-key: custom-header", 55},
	{"C.2.2", 0, "040c 2f73 616d 706c 652f 7061 7468", ":path: /sample/path", "", 0},
	{"C.2.3", 0, "1008 7061 7373 776f 7264 0673 6563 7265 74", "password: secret never", "", 0},
	{"C.2.4", 0, "82", ":method: GET", "", 0},

	{"C.3.1", 0, "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d", ":method: GET|:scheme: http|:path: /|:authority: www.example.com", ":authority: www.example.com", 57},
	{"C.3.2", 0, "8286 84be 5808 6e6f 2d63 6163 6865", ":method: GET|:scheme: http|:path: /|:authority: www.example.com|cache-control: no-cache", "cache-control: no-cache|:authority: www.example.com", 110},
	{"C.3.3", 0, "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65", ":method: GET|:scheme: https|:path: /index.html|:authority: www.example.com|custom-key: custom-value", "custom-key: custom-value|cache-control: no-cache|:authority: www.example.com", 164},

	{"C.4.1", 0, "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff", ":method: GET|:scheme: http|:path: /|:authority: www.example.com", ":authority: www.example.com", 57},
	{"C.4.2", 0, "8286 84be 5886 a8eb 1064 9cbf", ":method: GET|:scheme: http|:path: /|:authority: www.example.com|cache-control: no-cache", "cache-control: no-cache|:authority: www.example.com", 110},
	{"C.4.3", 0, "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf", ":method: GET|:scheme: https|:path: /index.html|:authority: www.example.com|custom-key: custom-value", "custom-key: custom-value|cache-control: no-cache|:authority: www.example.com", 164},

	{"C.5.1", 256, "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
		":status: 302|cache-control: private|date: Mon, 21 Oct 2013 20:13:21 GMT|location: https://www.example.com",
		"location: https://www.example.com|date: Mon, 21 Oct 2013 20:13:21 GMT|cache-control: private|:status: 302", 222},
	{"C.5.2", 256, "4803 3330 37c1 c0bf",
		":status: 307|cache-control: private|date: Mon, 21 Oct 2013 20:13:21 GMT|location: https://www.example.com",
		":status: 307|location: https://www.example.com|date: Mon, 21 Oct 2013 20:13:21 GMT|cache-control: private", 222},
	{"C.5.3", 256, "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 677a 6970 7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b 2076 6572 7369 6f6e 3d31",
		":status: 200|cache-control: private|date: Mon, 21 Oct 2013 20:13:22 GMT|location: https://www.example.com|content-encoding: gzip|set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
		"set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1|content-encoding: gzip|date: Mon, 21 Oct 2013 20:13:22 GMT", 215},

	{"C.6.1", 256, "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
		":status: 302|cache-control: private|date: Mon, 21 Oct 2013 20:13:21 GMT|location: https://www.example.com",
		"location: https://www.example.com|date: Mon, 21 Oct 2013 20:13:21 GMT|cache-control: private|:status: 302", 222},
	{"C.6.2", 256, "4883 640e ffc1 c0bf",
		":status: 307|cache-control: private|date: Mon, 21 Oct 2013 20:13:21 GMT|location: https://www.example.com",
		":status: 307|location: https://www.example.com|date: Mon, 21 Oct 2013 20:13:21 GMT|cache-control: private", 222},
	{"C.6.3", 256, "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
		":status: 200|cache-control: private|date: Mon, 21 Oct 2013 20:13:22 GMT|location: https://www.example.com|content-encoding: gzip|set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
		"set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1|content-encoding: gzip|date: Mon, 21 Oct 2013 20:13:22 GMT", 215},
}

var ample = Limits{Table: DefaultTable, Size: 1 << 20, Fields: 1 << 16}

func dehex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// listed tells a list in words.
func listed(l *List) string {
	var all []string
	for i := range l.Len() {
		s := fmt.Sprintf("%s: %s", l.Name(i), l.Value(i))
		if l.Never(i) {
			s += " never"
		}
		all = append(all, s)
	}
	return strings.Join(all, "|")
}

// tabled tells a table in words, and that its count is right.
func tabled(t testing.TB, x *table) string {
	t.Helper()
	var all []string
	size := uint32(0)
	for i := x.n; i > 0; i-- {
		e := x.get(x.first + i - 1)
		b := x.texts(e)
		all = append(all, fmt.Sprintf("%s: %s", b[:e.name], b[e.name:]))
		size += e.len() + overhead
	}
	if size != x.size || size > x.max {
		t.Fatalf("table of %d bytes counts %d of %d", size, x.size, x.max)
	}
	return strings.Join(all, "|")
}

func TestVectors(t *testing.T) {
	var d *Decoder
	var l List
	for _, v := range vectors {
		if strings.HasSuffix(v.name, ".1") || strings.HasPrefix(v.name, "C.2") {
			d = NewDecoder(ample, nil)
			if v.table > 0 {
				d.table.resize(v.table)
			}
		}
		if err := d.Decode(dehex(t, v.block), &l); err != nil {
			t.Errorf("%s: %v", v.name, err)
			continue
		}
		if got := listed(&l); got != v.want {
			t.Errorf("%s: %s, not %s", v.name, got, v.want)
		}
		if got := tabled(t, &d.table); got != v.after || d.table.size != v.size {
			t.Errorf("%s: the table has %s (%d), not %s (%d)", v.name, got, d.table.size, v.after, v.size)
		}
	}
}
