//go:build race

package http2

// maxAllocations: with the race detector pools drop at random.
const maxAllocations = 20
