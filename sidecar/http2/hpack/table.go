package hpack

// table is a dynamic table (RFC 7541, 2.3.2). Its texts lie one after the other
// in one piece of memory, its entries in a ring; both grow with use, so that a
// connection with few fields costs little.
type table struct {
	text  []byte  // texts from the oldest entry's on, after some of evicted ones
	base  uint32  // position of text[0], counted from the first text ever
	ring  []entry // a power of two of them
	first uint32  // number of the oldest entry, counted from the first ever
	n     uint32  // entries
	size  uint32  // as RFC 7541, 4.1 counts
	max   uint32
}

type entry struct {
	at          uint32 // position of the name; the value follows it
	name, value uint32 // lengths
	hash        uint32 // encoder only
	older       uint32 // encoder only: number of the next older entry in the chain of pairs
	olderName   uint32 // and in the chain of names
	mark        uint16
	static      uint8 // static entry of the same name; 0: none
}

func (e *entry) len() uint32 { return e.name + e.value }

// get gives the entry of that number, which must be there.
func (t *table) get(number uint32) *entry { return &t.ring[number&uint32(len(t.ring)-1)] }

// live tells whether the entry of that number is there.
func (t *table) live(number uint32) bool { return number-t.first < t.n }

// texts gives an entry's name and value in one piece.
func (t *table) texts(e *entry) []byte { return t.text[e.at-t.base:][:e.len()] }

// resize sets the table's bound.
func (t *table) resize(limit uint32) {
	t.max = limit
	t.evict(limit)
}

func (t *table) evict(limit uint32) {
	for t.size > limit {
		t.size -= t.get(t.first).len() + overhead
		t.first++
		t.n--
	}
	if t.n == 0 {
		t.base += uint32(len(t.text))
		t.text = t.text[:0]
	}
}

// add adds an entry and gives it, or nil: it is larger than the table, which is
// then empty (RFC 7541, 4.4). texts are its name, of that length, and its value;
// they may not be the table's own.
func (t *table) add(texts []byte, name uint32) *entry {
	size := uint32(len(texts)) + overhead
	if size > t.max {
		t.evict(0)
		return nil
	}
	t.evict(t.max - size)
	t.room(len(texts))
	if int(t.n) == len(t.ring) {
		t.growRing()
	}
	e := t.get(t.first + t.n)
	*e = entry{at: t.base + uint32(len(t.text)), name: name, value: uint32(len(texts)) - name}
	t.text = append(t.text, texts...)
	t.size += size
	t.n++
	return e
}

// room sees to it that so many bytes fit behind the texts. It moves them only
// after as much was added as has to be moved, and never keeps more than twice of
// what is in use.
func (t *table) room(need int) {
	if len(t.text)+need <= cap(t.text) {
		return
	}
	var live []byte
	if t.n > 0 {
		live = t.text[t.get(t.first).at-t.base:]
	}
	t.base += uint32(len(t.text) - len(live))
	if want := len(live) + need; want > cap(t.text)/2 {
		size := min(max(2*want, 2*cap(t.text), 256), 2*int(t.max))
		t.text = append(make([]byte, 0, size), live...)
		return
	}
	t.text = t.text[:copy(t.text[:cap(t.text)], live)]
}

func (t *table) growRing() {
	ring := make([]entry, max(2*len(t.ring), 8))
	for i := range t.n {
		number := t.first + i
		ring[number&uint32(len(ring)-1)] = *t.get(number)
	}
	t.ring = ring
}
