// Package message judges what the header blocks of HTTP/2 say (RFC 9113, 8):
// pseudo-fields, names and values, fields that have no place in HTTP/2, and
// whether a body has the length that was declared. What could be read in another
// way behind the next hop, which may speak HTTP/1, is refused, never repaired.
//
// It is pure and keeps nothing but offsets into a list of fields. Each field is
// judged once by Marks when it enters a table of hpack, not once per request.
// sidecar/http2 calls it.
package message
