//go:build race

package http1

// perThousand is how often a thousand requests may allocate: with the race
// detector sync.Pool drops at random, so that only gross waste shows.
const perThousand = 4000
