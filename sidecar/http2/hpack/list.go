package hpack

// List holds the fields of one header block in memory of its own. It is to be
// reused.
type List struct {
	text   []byte
	fields []field
	// Size is the fields' size in bytes as RFC 9113, 6.5.2 counts, 32 for each
	// besides its texts; also of those that TooLarge left out.
	Size int
	// TooLarge: there were more fields than the Decoder's bounds let; the list
	// ends before the first that did not fit.
	TooLarge bool
}

type field struct {
	at          uint32 // of the name; the value follows it
	name, value uint32 // lengths
	mark        uint16
	static      uint8 // static entry of the same name; 0: none
	never       bool
}

// Reset empties the list.
func (l *List) Reset() { l.text, l.fields, l.Size, l.TooLarge = l.text[:0], l.fields[:0], 0, false }

// Shrink gives up memory beyond so many bytes of texts, and empties the list.
func (l *List) Shrink(most int) {
	l.Reset()
	if cap(l.text) > most {
		l.text = nil
	}
	if cap(l.fields)*overhead > most {
		l.fields = nil
	}
}

// Len is how many fields there are.
func (l *List) Len() int { return len(l.fields) }

// Name gives the name of field i, valid until the list is used again.
func (l *List) Name(i int) []byte {
	f := &l.fields[i]
	return l.text[f.at:][:f.name:f.name]
}

// Value gives the value of field i, valid until the list is used again.
func (l *List) Value(i int) []byte {
	f := &l.fields[i]
	return l.text[f.at+f.name:][:f.value:f.value]
}

// Mark is what the Decoder's Marks say of field i.
func (l *List) Mark(i int) uint16 { return l.fields[i].mark }

// Never tells whether field i may not enter any table on any hop
// (RFC 7541, 6.2.3).
func (l *List) Never(i int) bool { return l.fields[i].never }
