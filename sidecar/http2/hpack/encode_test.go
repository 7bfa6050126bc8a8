package hpack

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	xhpack "golang.org/x/net/http2/hpack"
)

// request is what a gRPC client says; some of it differs each time.
func request(i int) [][2]string {
	return [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", "/shop.v1.Orders/Get"}, {":authority", "orders.shop.svc.cluster.local"},
		{"te", "trailers"}, {"content-type", "application/grpc"}, {"user-agent", "grpc-go/1.80.0"}, {"grpc-timeout", fmt.Sprint(999000-i, "u")},
		{"traceparent", fmt.Sprintf("00-%032x-%016x-01", i*7919, i*104729)}, {"x-request-id", fmt.Sprint("id-", i*31337)},
		{"authorization", "Bearer abcdefghijklmnopqrstuvwxyz0123456789"}, {"cookie", "a=b"},
	}
}

// both packs fields and checks that x/net's and our decoder read them.
type both struct {
	e      *Encoder
	ours   *Decoder
	theirs *xhpack.Decoder
	l      List
	last   []byte // the last block
}

func newBoth(limit uint32) *both {
	b := &both{NewEncoder(), NewDecoder(ample, nil), xhpack.NewDecoder(limit, nil), List{}, nil}
	return b
}

func (b *both) send(t testing.TB, fields [][2]string, never bool) {
	t.Helper()
	b.last = b.e.Begin(nil)
	for _, f := range fields {
		b.last = b.e.Append(b.last, f[0], []byte(f[1]), never)
	}
	b.check(t, fields)
}

func (b *both) check(t testing.TB, fields [][2]string) {
	t.Helper()
	theirs, err := b.theirs.DecodeFull(b.last)
	if err != nil || len(theirs) != len(fields) {
		t.Fatalf("x/net: %v, %d fields of %d: %x", err, len(theirs), len(fields), b.last)
	}
	if err := b.ours.Decode(b.last, &b.l); err != nil || b.l.Len() != len(fields) {
		t.Fatalf("%v, %d fields of %d", err, b.l.Len(), len(fields))
	}
	for i, f := range fields {
		if theirs[i].Name != f[0] || theirs[i].Value != f[1] || string(b.l.Name(i)) != f[0] || string(b.l.Value(i)) != f[1] {
			t.Fatalf("%v becomes %v, %q: %q", f, theirs[i], b.l.Name(i), b.l.Value(i))
		}
	}
	if a, z := tabled(t, &b.e.table), tabled(t, &b.ours.table); a != z {
		t.Fatalf("tables differ: %s\n%s", a, z)
	}
}

func TestEncoder(t *testing.T) {
	b := newBoth(DefaultTable)
	sizes := make([]int, 50)
	for i := range sizes {
		b.send(t, request(i), false)
		sizes[i] = len(b.last)
	}
	if first, later := sizes[0], slices.Max(sizes[10:]); later > 90 || first < 190 {
		t.Errorf("the first block has %d bytes, later ones up to %d: %v", first, later, sizes)
	}
	// What differs each time has entered once, for its name.
	if got := strings.Count(tabled(t, &b.e.table), "traceparent"); got != 1 {
		t.Errorf("traceparent is %d times in the table", got)
	}
	if strings.Contains(tabled(t, &b.e.table), "cookie") {
		t.Error("a short cookie is in the table")
	}
	if !strings.Contains(tabled(t, &b.e.table), "Bearer") {
		t.Error("a long token is not in the table")
	}
}

func TestNever(t *testing.T) {
	b := newBoth(DefaultTable)
	for range 5 {
		b.send(t, [][2]string{{"x-secret", "0123456789012345678901234567890"}, {":path", "/"}}, true)
		if !b.l.Never(0) || !b.l.Never(1) {
			t.Fatal("it may enter tables")
		}
	}
	for range 5 {
		b.send(t, [][2]string{{"authorization", "Basic YTpi"}, {"set-cookie", "a=b"}, {"proxy-authorization", "x"}}, false)
		for i := range b.l.Len() {
			if !b.l.Never(i) {
				t.Errorf("%s may enter tables", b.l.Name(i))
			}
		}
	}
	if b.e.table.n != 0 {
		t.Error(tabled(t, &b.e.table))
	}
	// What was never to enter stays so, and what entered goes as its index.
	block := appendText(appendText([]byte{0x10}, []byte("x-secret")), []byte("s"))
	var l List
	if err := b.ours.Decode(block, &l); err != nil {
		t.Fatal(err)
	}
	if got := NewEncoder().AppendField(nil, &l, 0); got[0] != 0x10 {
		t.Errorf("%x", got)
	}
}

func TestSizeUpdates(t *testing.T) {
	fields := [][2]string{{"x-a", "value that repeats"}}
	b := newBoth(DefaultTable)
	for range 3 {
		b.send(t, fields, false)
	}
	for _, tt := range []struct {
		limits []uint32
		want   string // how the next block begins
	}{
		{[]uint32{4096}, "be"},
		{[]uint32{8192}, "be"},
		{[]uint32{100}, "3f45 be"},
		{[]uint32{0, 4096}, "20 3fe11f"},
		{[]uint32{50, 4096, 1000}, "20 3fc907"},
		{[]uint32{0}, "20"},
		{[]uint32{10000}, "3fe11f"},
	} {
		for _, n := range tt.limits {
			b.e.SetLimit(n)
		}
		for i := range 3 {
			b.send(t, fields, false)
			if want := dehex(t, tt.want); i == 0 && !bytes.HasPrefix(b.last, want) {
				t.Errorf("%v: %x", tt.limits, b.last)
			}
		}
	}
}

// Whatever is packed comes out as it was, and the tables agree, whatever the
// sizes.
func FuzzEncode(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(seed, []byte("\x00\x10\x20\x30\x40name value x-request-id"))
	}
	f.Fuzz(func(t *testing.T, seed uint64, text []byte) {
		rng := rand.New(rand.NewPCG(seed, 3))
		piece := func() string {
			if len(text) == 0 {
				return ""
			}
			i := rng.IntN(len(text))
			return strings.Repeat(string(text[i:i+rng.IntN(len(text)-i+1)]), 1+rng.IntN(1+rng.IntN(200))/100)
		}
		b := newBoth(DefaultTable)
		relay := newBoth(DefaultTable) // what came goes on from its list
		for range 20 {
			if rng.IntN(4) == 0 {
				b.e.SetLimit(uint32(rng.IntN(5000) / (1 + rng.IntN(10))))
			}
			var fields [][2]string
			for range rng.IntN(30) {
				switch rng.IntN(4) {
				case 0:
					s := static[1+rng.IntN(int(lastStatic))]
					fields = append(fields, [2]string{s.name, s.value})
				case 1:
					fields = append(fields, [2]string{static[1+rng.IntN(int(lastStatic))].name, piece()})
				default:
					fields = append(fields, [2]string{piece(), piece()})
				}
			}
			b.send(t, fields, rng.IntN(8) == 0)
			relay.last = relay.e.Begin(nil)
			for i := range b.l.Len() {
				relay.last = relay.e.AppendField(relay.last, &b.l, i)
			}
			relay.check(t, fields)
			for i := range b.l.Len() {
				if b.l.Never(i) != relay.l.Never(i) {
					t.Fatalf("%q: never becomes %v", b.l.Name(i), relay.l.Never(i))
				}
			}
		}
	})
}

// Through a full table, with entries coming and going, the chains stay right.
func TestEncoderChurn(t *testing.T) {
	rng := rand.New(rand.NewPCG(75, 41))
	b := newBoth(DefaultTable)
	block := func() (fields [][2]string) {
		for range 12 {
			v := rng.IntN(1 + rng.IntN(300)) // small ones come often
			fields = append(fields, [2]string{fmt.Sprint("name-", v%40), strings.Repeat(fmt.Sprint(v), 1+v%50)})
		}
		return fields
	}
	indexed, all := 0, 0
	for range 3000 {
		b.send(t, block(), false)
		for i := range b.last {
			all++
			if b.last[i] >= 0x80 {
				indexed++
			}
		}
	}
	if b.e.table.n < 20 || b.e.table.first < 1000 || indexed == 0 || indexed == all {
		t.Errorf("%d entries, %d gone, %d of %d: the test tells nothing", b.e.table.n, b.e.table.first, indexed, all)
	}
	blocks := make([]List, 101)
	for i := range blocks {
		var block []byte
		e := NewEncoder()
		for _, f := range [][2]string{{"x-a", fmt.Sprint(rng.IntN(9))}, {"x-b", strings.Repeat("y", rng.IntN(200))}, {":path", fmt.Sprint("/", rng.IntN(30))}} {
			block = e.Append(block, f[0], []byte(f[1]), false)
		}
		if err := NewDecoder(ample, nil).Decode(block, &blocks[i]); err != nil {
			t.Fatal(err)
		}
	}
	i, dst := 0, make([]byte, 0, 1024)
	if n := testing.AllocsPerRun(100, func() {
		dst = b.e.Begin(dst[:0])
		for k := range blocks[i].Len() {
			dst = b.e.AppendField(dst, &blocks[i], k)
		}
		i++
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestNoAllocations(t *testing.T) {
	blocks := make([][]byte, 100)
	e := NewEncoder()
	for i := range blocks {
		blocks[i] = e.Begin(nil)
		for _, f := range request(i) {
			blocks[i] = e.Append(blocks[i], f[0], []byte(f[1]), false)
		}
	}
	d := NewDecoder(ample, nil)
	var l List
	out, dst := NewEncoder(), make([]byte, 0, 4096)
	for _, b := range blocks[:20] {
		relayed(t, d, &l, out, b, dst)
	}
	i := 20
	n := testing.AllocsPerRun(70, func() {
		relayed(t, d, &l, out, blocks[i], dst)
		i++
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func relayed(t testing.TB, d *Decoder, l *List, e *Encoder, block, dst []byte) []byte {
	if err := d.Decode(block, l); err != nil {
		t.Fatal(err)
	}
	dst = e.Begin(dst[:0])
	for i := range l.Len() {
		dst = e.AppendField(dst, l, i)
	}
	return dst
}

func BenchmarkRelay(b *testing.B) {
	e, d, out := NewEncoder(), NewDecoder(ample, nil), NewEncoder()
	var l List
	dst := make([]byte, 0, 4096)
	for i := range 10 {
		block := e.Begin(nil)
		for _, f := range request(i) {
			block = e.Append(block, f[0], []byte(f[1]), false)
		}
		dst = relayed(b, d, &l, out, block, dst)
	}
	// In the steady state the same block may come again and again.
	block := e.Begin(nil)
	for _, f := range request(3) {
		block = e.Append(block, f[0], []byte(f[1]), false)
	}
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			d.Decode(block, &l)
		}
	})
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			dst = out.Begin(dst[:0])
			for i := range l.Len() {
				dst = out.AppendField(dst, &l, i)
			}
		}
	})
}
