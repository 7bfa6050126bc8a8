// Package hpack packs and unpacks HTTP/2 header blocks (RFC 7541). A Decoder
// puts fields into a List that its caller reuses; an Encoder appends to the
// bytes that are to be sent, and decides by itself what is worth a place in the
// dynamic table. Neither allocates for a field once its tables have grown.
//
// It is pure, and knows nothing of what fields mean (sidecar/http2/message
// does), but lets its caller have a mark kept with each entry, so that what was
// judged once needs not be judged again. sidecar/http2 calls it.
package hpack

const (
	// DefaultTable is the size of a dynamic table in bytes before any setting
	// (RFC 9113, 6.5.2). Encoders here never use more: it costs memory for each
	// connection, and the fields of a service fit.
	DefaultTable = 4096
	// overhead is what RFC 7541, 4.1 counts for an entry besides its texts.
	overhead = 32
)
