package hpack

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	xhpack "golang.org/x/net/http2/hpack"
)

func TestFaults(t *testing.T) {
	for _, tt := range []struct {
		name, block string
		want        error
	}{
		{"index 0", "80", errIndex},
		{"index of an empty table", "be", errIndex},
		{"name's index of an empty table", "7e 01 61", errIndex},
		{"name's index of an empty table, not added", "0f2f 01 61", errIndex},
		{"index beyond all", "ff ff ff ff 0f", errIndex},
		{"index above 32 bits", "ff ff ff ff ff 1f", errInteger},
		{"zeros without end", "ff 80 80 80 80 80 80 00", errInteger},
		{"integer cut", "ff", errShort},
		{"integer cut later", "ff ff", errShort},
		{"name missing", "40", errShort},
		{"name cut", "40 05 61 62", errShort},
		{"value missing", "41", errShort},
		{"value cut", "41 02 61", errShort},
		{"value longer than anything", "41 7f ff ff ff ff 07", errShort},
		{"Huffman: EOS", "41 84 ff ff ff ff", errHuffman},
		{"Huffman: EOS after a letter", "41 84 1f ff ff ff", errHuffman},
		{"Huffman: a byte of padding", "41 82 1f ff", errHuffman},
		{"Huffman: nothing but padding", "41 81 ff", errHuffman},
		{"Huffman: padding of zeros", "41 81 18", errHuffman},
		{"Huffman: cut within a code", "41 82 ff c0", errHuffman},
		{"length of zeros without end", "41 7f 80 80 80 80 80 80 00", errInteger},
		{"name's index without end", "7f 80 80 80 80 80 80 00", errInteger},
		{"update after a field", "82 20", errLate},
		{"three updates", "20 20 20", errLate},
		{"update above the limit", "3f e2 1f", errUpdate},
		{"update cut", "3f", errShort},

		{"updates", "20 3f e1 1f 82", nil},
		{"Huffman", "41 81 1f", nil},
		{"Huffman: empty", "41 80", nil},
	} {
		var l List
		if err := NewDecoder(ample, nil).Decode(dehex(t, tt.block), &l); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, not %v", tt.name, err, tt.want)
		}
	}
}

// A list that is too large is cut, and what comes after it is read as if it had
// been whole.
func TestLimits(t *testing.T) {
	block := []byte{0x82} // 42 bytes
	block = appendInteger(block, 0x40, 6, 0)
	block = appendText(appendText(block, []byte("name")), []byte("value")) // 41 bytes
	for _, tt := range []struct {
		size, fields, kept int
		want               bool
	}{
		{83, 2, 2, false}, {82, 2, 1, true}, {83, 1, 1, true}, {41, 2, 0, true}, {83, 0, 0, true},
	} {
		d := NewDecoder(Limits{DefaultTable, tt.size, tt.fields}, nil)
		var l List
		if err := d.Decode(block, &l); err != nil || l.Len() != tt.kept || l.TooLarge != tt.want || l.Size != 83 {
			t.Errorf("%+v: %v, %d fields, %v, %d bytes", tt, err, l.Len(), l.TooLarge, l.Size)
		}
		if got := tabled(t, &d.table); got != "name: value" {
			t.Errorf("%+v: the table has %q", tt, got)
		}
	}
}

// A small block may stand for much: it is given up soon.
func TestBomb(t *testing.T) {
	const limit = 64 << 10
	big := strings.Repeat("x", 4000)
	first := appendText(appendText([]byte{0x40}, []byte("n")), []byte(big))
	bigName := appendText(appendText([]byte{0x40}, []byte(big)), nil)
	for name, block := range map[string][]byte{
		"fields":         append(slices.Clone(first), bytes.Repeat([]byte{0xbe}, 1<<16)...),
		"names":          append(slices.Clone(bigName), bytes.Repeat([]byte{0x0f, 47, 0}, 1<<15)...),
		"names, added":   append(slices.Clone(bigName), bytes.Repeat([]byte{0x7e, 0}, 1<<15)...),
		"static entries": bytes.Repeat([]byte{0x82}, 1<<16),
	} {
		d := NewDecoder(Limits{DefaultTable, limit, 1000}, nil)
		var l List
		if err := d.Decode(block, &l); err != ErrExcess {
			t.Errorf("%s: %v", name, err)
		}
		if l.Size > 5*limit || cap(l.text) > 4*limit || l.Len() > 1000 {
			t.Errorf("%s: %d bytes counted, %d kept, %d fields", name, l.Size, cap(l.text), l.Len())
		}
	}
}

// Fields that are too large for the table empty it, and cost no memory there.
func TestTooLargeForTable(t *testing.T) {
	d := NewDecoder(ample, nil)
	var l List
	b := appendText(appendText([]byte{0x40}, []byte("a")), []byte("b"))
	b = appendText(appendText(append(b, 0x40), []byte("n")), bytes.Repeat([]byte("x"), DefaultTable))
	if err := d.Decode(b, &l); err != nil || l.Len() != 2 || d.table.n != 0 || d.table.size != 0 {
		t.Errorf("%v, %d fields, %d in the table", err, l.Len(), d.table.n)
	}
}

// A table through which much has gone is as x/net's, has moved its texts about,
// and neither grows nor allocates any more.
func TestChurn(t *testing.T) {
	rng := rand.New(rand.NewPCG(41, 43))
	d, theirs := NewDecoder(ample, nil), xhpack.NewDecoder(DefaultTable, nil)
	var l List
	block := func() []byte {
		var b []byte
		for range 8 {
			b = appendText(append(b, 0x40), []byte(strings.Repeat(fmt.Sprint("n", rng.IntN(1000)), 1+rng.IntN(4))))
			b = appendText(b, []byte(strings.Repeat(fmt.Sprint(rng.IntN(1000)), rng.IntN(60))))
			b = append(b, 0x80|byte(62+rng.IntN(2)))
		}
		return b
	}
	b := []byte{0x40, 1, 'x', 0, 0x40, 1, 'y', 0} // two that can be named
	for i := range 3000 {
		want, theirErr := theirs.DecodeFull(b)
		if err := d.Decode(b, &l); err != nil || theirErr != nil || l.Len() != len(want) {
			t.Fatal(i, err, theirErr)
		}
		for k, w := range want {
			if w.Name != string(l.Name(k)) || w.Value != string(l.Value(k)) {
				t.Fatalf("%d: %q: %q, not %v", i, l.Name(k), l.Value(k), w)
			}
		}
		tabled(t, &d.table)
		b = block()
	}
	if c := cap(d.table.text); c > 2*DefaultTable {
		t.Errorf("texts take %d bytes", c)
	}
	blocks := make([][]byte, 101)
	for i := range blocks {
		blocks[i] = block()
	}
	i := 0
	if n := testing.AllocsPerRun(100, func() {
		if err := d.Decode(blocks[i], &l); err != nil {
			t.Fatal(err)
		}
		i++
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestShrink(t *testing.T) {
	var l List
	for _, tt := range []struct {
		size int
		kept bool
	}{{100, true}, {5000, false}} {
		b := appendText(appendText([]byte{0x40}, []byte("n")), bytes.Repeat([]byte{1}, tt.size))
		if err := NewDecoder(ample, nil).Decode(bytes.Repeat(b, tt.size/20), &l); err != nil {
			t.Fatal(err)
		}
		l.Shrink(4096)
		if l.Len() != 0 || (l.text != nil) != tt.kept || (l.fields != nil) != tt.kept {
			t.Errorf("%d bytes: %d, %d", tt.size, cap(l.text), cap(l.fields))
		}
	}
}

func TestMarks(t *testing.T) {
	calls := 0
	d := NewDecoder(ample, NewMarks(func(name, value []byte) uint16 {
		calls++
		return uint16(len(name)<<8 | len(value))
	}))
	calls = 0
	block := append([]byte{0x82}, appendText(appendText([]byte{0x40}, []byte("name")), []byte("value"))...)
	block = append(append(block, 0xbe), appendText([]byte{0x0f, 47}, []byte("another"))...)
	var l List
	if err := d.Decode(block, &l); err != nil || l.Len() != 4 {
		t.Fatal(err, l.Len())
	}
	for i := range l.Len() {
		if want := uint16(len(l.Name(i))<<8 | len(l.Value(i))); l.Mark(i) != want {
			t.Errorf("%s: %x, not %x", l.Name(i), l.Mark(i), want)
		}
	}
	if calls != 2 {
		t.Errorf("judged %d times", calls)
	}
}

// FuzzDecode reads blocks, each behind a byte that is its length, with x/net's
// decoder and ours.
func FuzzDecode(f *testing.F) {
	var series []byte
	for _, v := range vectors {
		b := dehex(f, v.block)
		series = append(append(series, byte(len(b))), b...)
		f.Add(append([]byte{byte(len(b))}, b...))
	}
	f.Add(series)
	f.Add([]byte{4, 0x3f, 0x30, 0x3f, 0x30, 1, 0x82})
	f.Add([]byte{3, 0x3f, 0xe1, 0x1f, 1, 0x20, 5, 0x41, 0x84, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		ours := NewDecoder(ample, nil)
		theirs := xhpack.NewDecoder(DefaultTable, nil)
		var l List
		for len(b) > 0 {
			n := min(int(b[0]), len(b)-1)
			block := b[1 : 1+n]
			b = b[1+n:]
			want, theirErr := theirs.DecodeFull(block)
			err := ours.Decode(block, &l)
			tabled(t, &ours.table)
			if err == errInteger || err == errLate || err == ErrExcess {
				return // we are stricter
			}
			if err == nil && theirErr != nil && strings.Contains(theirErr.Error(), "dynamic table size update MUST") {
				return // a second update, lawful; x/net refuses it as long as its table is not empty
			}
			if (err == nil) != (theirErr == nil) {
				t.Fatalf("%x: we say %v, x/net %v", block, err, theirErr)
			}
			if err != nil {
				return
			}
			if len(want) != l.Len() {
				t.Fatalf("%x: %d fields, x/net %d", block, l.Len(), len(want))
			}
			for i, w := range want {
				if w.Name != string(l.Name(i)) || w.Value != string(l.Value(i)) || w.Sensitive != l.Never(i) {
					t.Fatalf("%x: %q: %q, x/net %v", block, l.Name(i), l.Value(i), w)
				}
				if s := l.fields[i].static; s != staticName(l.Name(i)) || s > 0 && static[s].name != w.Name {
					t.Fatalf("%q taken for static entry %d", w.Name, s)
				}
			}
		}
	})
}

func TestStatic(t *testing.T) {
	for i := uint32(1); i <= lastStatic; i++ {
		f, err := xhpack.NewDecoder(0, nil).DecodeFull([]byte{0x80 | byte(i)})
		if err != nil || len(f) != 1 || f[0].Name != static[i].name || f[0].Value != static[i].value {
			t.Errorf("%d: %v %v, not %v", i, f, err, static[i])
		}
		if s := staticName([]byte(static[i].name)); static[s].name != static[i].name || s != staticFirst[i] {
			t.Errorf("%s: found at %d", static[i].name, s)
		}
	}
	for _, name := range []string{"", "x", "host2", ":methoe", "traceparent"} {
		if staticName([]byte(name)) != 0 {
			t.Errorf("%s is not static", name)
		}
	}
}

func TestHuffman(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 541))
	for c := range 256 {
		for range 4 {
			s := []byte{byte(rng.IntN(256)), byte(c), byte(rng.IntN(128))}
			want := xhpack.AppendHuffmanString(nil, string(s))
			got := appendCoded(nil, s)
			back, ok := appendDecoded(nil, got)
			if !bytes.Equal(got, want) || codedLen(s) != len(want) || !ok || !bytes.Equal(back, s) {
				t.Fatalf("%q: %x, not %x; back %q %v", s, got, want, back, ok)
			}
		}
	}
}

func FuzzHuffman(f *testing.F) {
	for _, s := range []string{"", "\xff", "\x1f", "\x1f\xff", "\xff\xff\xff\xfc", "www.example.com", "\x00\x01\x02\xfe\xff"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		want, err := xhpack.HuffmanDecodeToString(b)
		got, ok := appendDecoded([]byte("before"), b)
		if ok != (err == nil) || ok && string(got) != "before"+want {
			t.Fatalf("%x: %q %v, x/net %q %v", b, got, ok, want, err)
		}
		coded := appendCoded(nil, b)
		if back, ok := appendDecoded(nil, coded); !ok || !bytes.Equal(back, b) || len(coded) != codedLen(b) {
			t.Fatalf("%x: %x, back %x %v", b, coded, back, ok)
		}
		if !bytes.Equal(coded, xhpack.AppendHuffmanString(nil, string(b))) {
			t.Fatalf("%x: %x", b, coded)
		}
	})
}

func ExampleDecoder() {
	d := NewDecoder(Limits{Table: DefaultTable, Size: 64 << 10, Fields: 1000}, nil)
	var l List
	if err := d.Decode([]byte{0x82, 0x84}, &l); err != nil {
		fmt.Println(err)
	}
	for i := range l.Len() {
		fmt.Printf("%s %s\n", l.Name(i), l.Value(i))
	}
	// Output:
	// :method GET
	// :path /
}
