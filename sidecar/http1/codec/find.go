package codec

// Find gives the value of the first field line from the given one on whose name
// is name, in lower case, and where to look for the next; -1: there is none.
// The value is valid as long as the head's bytes.
func (h *Head) Find(name string, from int) (value []byte, next int) {
	for i := from; i < len(h.fields); i++ {
		f := &h.fields[i]
		if int(f.nameEnd-f.line) == len(name) && equalFold(h.b[f.line:f.nameEnd], name) {
			return h.b[f.value:f.valueEnd], i + 1
		}
	}
	return nil, -1
}
