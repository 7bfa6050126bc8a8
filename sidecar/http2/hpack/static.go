package hpack

// static are the fields that both sides know (RFC 7541, A); index 0 is none.
var static = [...]struct{ name, value string }{
	{},
	{":authority", ""},
	{":method", "GET"},
	{":method", "POST"},
	{":path", "/"},
	{":path", "/index.html"},
	{":scheme", "http"},
	{":scheme", "https"},
	{":status", "200"},
	{":status", "204"},
	{":status", "206"},
	{":status", "304"},
	{":status", "400"},
	{":status", "404"},
	{":status", "500"},
	{"accept-charset", ""},
	{"accept-encoding", "gzip, deflate"},
	{"accept-language", ""},
	{"accept-ranges", ""},
	{"accept", ""},
	{"access-control-allow-origin", ""},
	{"age", ""},
	{"allow", ""},
	{"authorization", ""},
	{"cache-control", ""},
	{"content-disposition", ""},
	{"content-encoding", ""},
	{"content-language", ""},
	{"content-length", ""},
	{"content-location", ""},
	{"content-range", ""},
	{"content-type", ""},
	{"cookie", ""},
	{"date", ""},
	{"etag", ""},
	{"expect", ""},
	{"expires", ""},
	{"from", ""},
	{"host", ""},
	{"if-match", ""},
	{"if-modified-since", ""},
	{"if-none-match", ""},
	{"if-range", ""},
	{"if-unmodified-since", ""},
	{"last-modified", ""},
	{"link", ""},
	{"location", ""},
	{"max-forwards", ""},
	{"proxy-authenticate", ""},
	{"proxy-authorization", ""},
	{"range", ""},
	{"referer", ""},
	{"refresh", ""},
	{"retry-after", ""},
	{"server", ""},
	{"set-cookie", ""},
	{"strict-transport-security", ""},
	{"transfer-encoding", ""},
	{"user-agent", ""},
	{"vary", ""},
	{"via", ""},
	{"www-authenticate", ""},
}

const lastStatic = uint32(len(static) - 1)

// Indices of static names that the encoder treats in its own way.
const (
	staticAuthorization      = 23
	staticCookie             = 32
	staticProxyAuthorization = 49
	staticSetCookie          = 55
)

// staticSlots finds static names by staticHash, with linear probing: what a map
// would do, at a third of the time.
var staticSlots = func() (slots [256]uint8) {
	for i := len(static) - 1; i > 0; i-- { // downward: the first of equal names stays
		h := staticHash(static[i].name)
		for slots[h] != 0 && static[slots[h]].name != static[i].name {
			h++
		}
		slots[h] = uint8(i)
	}
	return slots
}()

func staticHash[T string | []byte](name T) uint8 {
	n := len(name)
	return uint8(n*7) + name[0]*13 + name[n-1]*31 + name[n/2]*3
}

// staticFirst is the first entry with the name of each.
var staticFirst = func() (first [len(static)]uint8) {
	for i := 1; i < len(static); i++ {
		first[i] = uint8(i)
		if static[i].name == static[i-1].name {
			first[i] = first[i-1]
		}
	}
	return first
}()

// staticName gives the first static entry of that name; 0: none.
func staticName(name []byte) uint8 {
	if len(name) == 0 {
		return 0
	}
	for h := staticHash(name); staticSlots[h] != 0; h++ {
		if i := staticSlots[h]; static[i].name == string(name) {
			return i
		}
	}
	return 0
}
