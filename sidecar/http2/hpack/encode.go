package hpack

import "hash/maphash"

const (
	pairSlots = 64 // chains of entries: as many as a full table of short fields has
	nameSlots = 32
	seenSets  = 32
	seenWays  = 4 // so that two fields of each request do not hide each other for ever
	// shortSecret is below which length credentials and cookies never enter a
	// table: who can make us send fields of their own could guess them, and see
	// by the length whether a guess was right (RFC 7541, 7.1). Longer ones are
	// out of reach of guesses, which have to be right as a whole.
	shortSecret = 20
)

// Encoder packs the header blocks of one direction of one connection.
//
// Its choice is to add to the table only what it has seen shortly before: what
// comes once, such as identifiers and times, then pushes nothing out.
type Encoder struct {
	table   table
	update  bool // a size update has to begin the next block
	lower   bool // and the bound was lower meanwhile
	seed    maphash.Seed
	scratch []byte
	// pairs and names are numbers of the newest entry of each chain. An entry that
	// was evicted stays in its chain, which ends there: all after it are older.
	pairs [pairSlots]uint32
	names [nameSlots]uint32
	seen  [seenSets][seenWays]uint32 // hashes of fields that were not added, latest first
}

// NewEncoder makes an Encoder for a peer that has said nothing of itself yet.
func NewEncoder() *Encoder {
	// Numbers begin with 1, so that a slot's 0 is no entry's.
	return &Encoder{table: table{max: DefaultTable, first: 1}, seed: maphash.MakeSeed()}
}

// SetLimit takes the peer's SETTINGS_HEADER_TABLE_SIZE, in bytes.
func (e *Encoder) SetLimit(limit uint32) {
	limit = min(limit, DefaultTable)
	if limit == e.table.max {
		return
	}
	if e.update && limit > e.table.max {
		// The lowest bound must be told too (RFC 7541, 4.2). 0 says that as well, and
		// all decoders understand it: Go's refuses a second update as long as its
		// table is not empty.
		e.lower = true
		e.table.evict(0)
	}
	e.update = true
	e.table.resize(limit)
}

// Begin begins a block: it has to be called before its first field. Whatever
// was appended since has to be sent, or the peer's table differs.
func (e *Encoder) Begin(dst []byte) []byte {
	if !e.update {
		return dst
	}
	if e.lower {
		dst = append(dst, 0x20)
	}
	e.update, e.lower = false, false
	return appendInteger(dst, 0x20, 5, e.table.max)
}

// AppendField packs field i of the list; whether it may enter tables, or never,
// stays as it was (RFC 7541, 6.2.3).
func (e *Encoder) AppendField(dst []byte, l *List, i int) []byte {
	f := &l.fields[i]
	return e.append(dst, l.text[f.at:][:f.name+f.value], *f)
}

// Append packs a field of one's own; name is in lower case.
func (e *Encoder) Append(dst []byte, name string, value []byte, never bool) []byte {
	e.scratch = append(append(e.scratch[:0], name...), value...)
	f := field{name: uint32(len(name)), value: uint32(len(value)), never: never}
	f.static = staticName(e.scratch[:f.name])
	return e.append(dst, e.scratch, f)
}

// append packs a field whose name and value are texts; of f it takes no
// position.
func (e *Encoder) append(dst, texts []byte, f field) []byte {
	name, value := texts[:f.name], texts[f.name:]
	if f.static > 0 && !f.never {
		for i := int(f.static); i < len(static) && staticFirst[i] == f.static; i++ {
			if static[i].value == string(value) {
				return append(dst, 0x80|byte(i))
			}
		}
	}
	secret := false
	switch f.static {
	case staticAuthorization, staticProxyAuthorization, staticCookie, staticSetCookie:
		secret = len(value) < shortSecret
	}
	if f.never || secret {
		return e.literal(dst, texts, f, literalHow{0x10, 4, e.nameIndex(name, f.static)})
	}
	hash := fold(maphash.Bytes(e.seed, texts))
	t := &e.table
	for number, left := e.pairs[hash%pairSlots], t.n; left > 0 && t.live(number); left-- {
		x := t.get(number)
		if x.hash == hash && x.name == f.name && string(t.texts(x)) == string(texts) {
			return appendInteger(dst, 0x80, 7, t.index(number))
		}
		number = x.older
	}
	index := e.nameIndex(name, f.static)
	if !e.worth(texts, f, hash, index) {
		return e.literal(dst, texts, f, literalHow{0, 4, index})
	}
	dst = e.literal(dst, texts, f, literalHow{0x40, 6, index})
	e.remember(texts, f, hash)
	return dst
}

// worth tells whether a field should enter the table: it was seen shortly
// before, or its name was, and has no place yet. Large ones would push out all
// others.
func (e *Encoder) worth(texts []byte, f field, hash, index uint32) bool {
	if uint32(len(texts))+overhead > e.table.max/2 {
		return false
	}
	if e.again(hash) {
		return true
	}
	// Not the hash of a field with empty value:
	return index == 0 && e.again(fold(maphash.Bytes(e.seed, texts[:f.name]))+1)
}

// again tells whether the hash was seen shortly before, and takes note of it.
func (e *Encoder) again(hash uint32) bool {
	set := &e.seen[hash>>8%seenSets]
	for i, h := range set {
		if h == hash {
			copy(set[1:], set[:i])
			set[0] = hash
			return true
		}
	}
	copy(set[1:], set[:seenWays-1])
	set[0] = hash
	return false
}

func (e *Encoder) remember(texts []byte, f field, hash uint32) {
	x := e.table.add(texts, f.name) // worth has seen to it that it fits
	number := e.table.first + e.table.n - 1
	x.hash, x.static = hash, f.static
	x.older, e.pairs[hash%pairSlots] = e.pairs[hash%pairSlots], number
	if f.static == 0 {
		slot := &e.names[fold(maphash.Bytes(e.seed, texts[:f.name]))%nameSlots]
		x.olderName, *slot = *slot, number
	}
}

// nameIndex gives an index with that name; 0: there is none.
func (e *Encoder) nameIndex(name []byte, static uint8) uint32 {
	if static > 0 {
		return uint32(static)
	}
	t := &e.table
	if t.n == 0 {
		return 0
	}
	number := e.names[fold(maphash.Bytes(e.seed, name))%nameSlots]
	for left := t.n; left > 0 && t.live(number); left-- {
		x := t.get(number)
		if string(t.texts(x)[:x.name]) == string(name) {
			return t.index(number)
		}
		number = x.olderName
	}
	return 0
}

// index gives the index of an entry by its number (RFC 7541, 2.3.3).
func (t *table) index(number uint32) uint32 { return lastStatic + t.first + t.n - number }

// literalHow is the representation of a literal: its first bits, how many bits
// the name's index has in that byte, and that index.
type literalHow struct {
	first  byte
	prefix uint
	index  uint32
}

func (e *Encoder) literal(dst, texts []byte, f field, how literalHow) []byte {
	dst = appendInteger(dst, how.first, how.prefix, how.index)
	if how.index == 0 {
		dst = appendText(dst, texts[:f.name])
	}
	return appendText(dst, texts[f.name:])
}

func fold(h uint64) uint32 { return uint32(h ^ h>>32) }

// appendInteger appends v with a prefix of so many bits behind those of first
// (RFC 7541, 5.1).
func appendInteger(dst []byte, first byte, prefix uint, v uint32) []byte {
	most := uint32(1)<<prefix - 1
	if v < most {
		return append(dst, first|byte(v))
	}
	dst = append(dst, first|byte(most))
	for v -= most; v >= 0x80; v >>= 7 {
		dst = append(dst, byte(v)|0x80)
	}
	return append(dst, byte(v))
}

// appendText appends a string, in Huffman code where that is shorter.
func appendText(dst, s []byte) []byte {
	if n := codedLen(s); n < len(s) {
		return appendCoded(appendInteger(dst, 0x80, 7, uint32(n)), s)
	}
	return append(appendInteger(dst, 0, 7, uint32(len(s))), s...)
}
