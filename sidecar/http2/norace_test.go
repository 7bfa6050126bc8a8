//go:build !race

package http2

// maxAllocations are an Exchange and its two streams, and one for what is made
// anew now and then.
const maxAllocations = 4
