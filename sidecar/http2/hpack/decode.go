package hpack

import (
	"errors"
	"math"
)

// Marks judge a field once, when its texts are first seen: what of is for it
// stays with its entry in the tables. Made once and shared by all Decoders.
type Marks struct {
	of     func(name, value []byte) uint16
	static [len(static)]uint16
}

// NewMarks marks by of, which has to depend on its arguments only.
func NewMarks(of func(name, value []byte) uint16) *Marks {
	m := &Marks{of: of}
	for i := 1; i < len(static); i++ {
		m.static[i] = of([]byte(static[i].name), []byte(static[i].value))
	}
	return m
}

// Limits are a Decoder's bounds.
type Limits struct {
	Table  uint32 // most bytes of its table, as announced to the peer; at least DefaultTable
	Size   int    // most bytes of a list, as List.Size counts
	Fields int    // most fields of a list
}

// Decoder unpacks the header blocks of one direction of one connection, in
// their order, none left out.
type Decoder struct {
	table  table
	limits Limits
	marks  *Marks
}

// NewDecoder makes a Decoder; without marks all are 0.
func NewDecoder(limits Limits, marks *Marks) *Decoder {
	if marks == nil {
		marks = NewMarks(func(_, _ []byte) uint16 { return 0 })
	}
	return &Decoder{table: table{max: DefaultTable}, limits: limits, marks: marks}
}

// ErrExcess: a block that unpacks to so much more than the limits that it is not
// worth to go on: a byte can stand for a whole table. A connection error of type
// ENHANCE_YOUR_CALM.
var ErrExcess = errors.New("hpack: block unpacks to more than four times the limit")

// What else is wrong with a block. All of it is a connection error of type
// COMPRESSION_ERROR (RFC 9113, 4.3): the tables differ from here on.
var (
	errShort   = errors.New("hpack: block ends within a field")
	errInteger = errors.New("hpack: integer too large (RFC 7541, 5.1)")
	errHuffman = errors.New("hpack: malformed Huffman code (RFC 7541, 5.2)")
	errIndex   = errors.New("hpack: index of nothing (RFC 7541, 2.3.3)")
	errUpdate  = errors.New("hpack: table size update above what was announced (RFC 7541, 6.3)")
	errLate    = errors.New("hpack: table size update not at the block's beginning, or a third (RFC 7541, 4.2)")
)

// maxExcess is how many times the limit a block may unpack to before the whole
// connection ends, not just the stream: honest peers are off by a field or two.
const maxExcess = 4

// maxUpdates is how many size updates may begin a block (RFC 7541, 4.2).
const maxUpdates = 2

// Decode unpacks a whole block into l. What exceeds the limits is left out
// (List.TooLarge), but decoded, so that later blocks can be. After an error the
// Decoder is not to be used again.
func (d *Decoder) Decode(block []byte, l *List) error {
	l.Reset()
	updates := 0
	for b := block; len(b) > 0; {
		var err error
		c := b[0]
		switch {
		case c >= 0x80: // indexed field, 6.1
			var index uint32
			if index, b, err = integer(b, 7); err == nil {
				err = d.indexed(index, l)
			}
		case c >= 0x40: // literal that enters the table, 6.2.1
			b, err = d.literal(b, 6, l)
		case c >= 0x20: // size update, 6.3
			if updates++; updates > maxUpdates {
				return errLate
			}
			var size uint32
			if size, b, err = integer(b, 5); err == nil && size > d.limits.Table {
				err = errUpdate
			}
			if err != nil {
				return err
			}
			d.table.resize(size)
			continue
		default: // literal that does not, 6.2.2, or never may, 6.2.3
			b, err = d.literal(b, 4, l)
		}
		if err != nil {
			return err
		}
		updates = maxUpdates // none after a field
	}
	return nil
}

func (d *Decoder) indexed(index uint32, l *List) error {
	f := field{at: uint32(len(l.text))}
	t := &d.table
	switch {
	case index == 0 || index > lastStatic+t.n:
		return errIndex
	case index <= lastStatic:
		s := &static[index]
		f.name, f.value = uint32(len(s.name)), uint32(len(s.value))
		f.mark, f.static = d.marks.static[index], staticFirst[index]
		if d.fits(l, f) {
			l.text = append(append(l.text, s.name...), s.value...)
			l.fields = append(l.fields, f)
		}
	default:
		e := t.get(t.first + t.n - (index - lastStatic))
		f.name, f.value, f.mark, f.static = e.name, e.value, e.mark, e.static
		if d.fits(l, f) {
			l.text = append(l.text, t.texts(e)...)
			l.fields = append(l.fields, f)
		}
	}
	return d.excess(l)
}

// literal unpacks a literal field whose name's index has a prefix of so many
// bits; with 6 it enters the table.
func (d *Decoder) literal(b []byte, prefix uint, l *List) ([]byte, error) {
	f := field{at: uint32(len(l.text)), never: prefix == 4 && b[0]&0x10 != 0}
	t := &d.table
	index, b, err := integer(b, prefix)
	switch {
	case err != nil:
		return nil, err
	case index == 0:
		if l.text, b, err = text(l.text, b); err != nil {
			return nil, err
		}
		f.static = staticName(l.text[f.at:])
	case index <= lastStatic:
		l.text = append(l.text, static[index].name...)
		f.static = staticFirst[index]
	case index > lastStatic+t.n:
		return nil, errIndex
	default:
		e := t.get(t.first + t.n - (index - lastStatic))
		l.text = append(l.text, t.texts(e)[:e.name]...)
		f.static = e.static
	}
	f.name = uint32(len(l.text)) - f.at
	if l.text, b, err = text(l.text, b); err != nil {
		return nil, err
	}
	f.value = uint32(len(l.text)) - f.at - f.name
	f.mark = d.marks.of(l.text[f.at:f.at+f.name], l.text[f.at+f.name:])
	if prefix == 6 {
		if e := t.add(l.text[f.at:], f.name); e != nil {
			e.mark, e.static = f.mark, f.static
		}
	}
	if d.fits(l, f) {
		l.fields = append(l.fields, f)
	} else {
		l.text = l.text[:f.at]
	}
	return b, d.excess(l)
}

// fits counts a field and tells whether the list may have it.
func (d *Decoder) fits(l *List, f field) bool {
	l.Size += int(f.name+f.value) + overhead
	l.TooLarge = l.TooLarge || l.Size > d.limits.Size || len(l.fields) >= d.limits.Fields
	return !l.TooLarge
}

func (d *Decoder) excess(l *List) error {
	if l.Size > maxExcess*d.limits.Size {
		return ErrExcess
	}
	return nil
}

// integer reads an integer with a prefix of so many bits (RFC 7541, 5.1).
func integer(b []byte, prefix uint) (uint32, []byte, error) {
	most := uint32(1)<<prefix - 1
	v := uint32(b[0]) & most
	b = b[1:]
	if v < most {
		return v, b, nil
	}
	sum := uint64(v)
	for shift := uint(0); shift < 35; shift += 7 { // zeros without end are no number
		if len(b) == 0 {
			return 0, nil, errShort
		}
		c := b[0]
		b = b[1:]
		sum += uint64(c&0x7f) << shift
		if c < 0x80 {
			if sum > math.MaxUint32 {
				break
			}
			return uint32(sum), b, nil
		}
	}
	return 0, nil, errInteger
}

// text reads a string (RFC 7541, 5.2) and appends it to dst.
func text(dst, b []byte) ([]byte, []byte, error) {
	if len(b) == 0 {
		return dst, nil, errShort
	}
	coded := b[0]&0x80 != 0
	n, b, err := integer(b, 7)
	if err != nil {
		return dst, nil, err
	}
	if uint64(n) > uint64(len(b)) {
		return dst, nil, errShort
	}
	if !coded {
		return append(dst, b[:n]...), b[n:], nil
	}
	dst, ok := appendDecoded(dst, b[:n])
	if !ok {
		return dst, nil, errHuffman
	}
	return dst, b[n:], nil
}
