//go:build !race

package http1

// perThousand is how often a thousand requests may allocate: a collection in
// between empties the buffer pools, and some are made anew.
const perThousand = 20
