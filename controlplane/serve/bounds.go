package serve

import (
	"math/rand/v2"
	"sync"
	"time"
)

// Bounds of a server. Each waits, grows or repeats no further than this.
const (
	maxPeers        = 5000             // five times what one replica is made for
	maxNames        = 10_000           // addresses one peer may watch: a sidecar keeps 1,000 idle ones
	maxName         = 64               // bytes of a resource name; the longest IPv6 address makes 44
	maxBadNames     = 256              // refusals owed to one peer at a time
	helloWait       = 10 * time.Second // from the stream's opening to its Hello
	podWait         = 2 * time.Second  // for a pod that the token knows and our world not yet
	sendBound       = 10 * time.Second // a peer that reads nothing for this long is cut off; it comes back and gets the newest
	heartbeat       = 5 * time.Second  // three of them tell a dead peer from a quiet one: 15 s
	missedBeats     = 3
	streamAge       = 30 * time.Minute // ±20 %, so that peers spread over replicas again
	streamAgeJitter = 0.2
	goodbyeWait     = 2 * time.Second // for a peer to leave after our Goodbye
	stopSpread      = time.Second     // over which peers of a stopping replica come back
	ageSpread       = 200 * time.Millisecond
	nackLogEvery    = time.Second // per peer: a peer that refuses everything must not fill the log

	issueConcurrent = 64               // token reviews and signatures at one time
	issueRate       = 500.0            // per second: 1,000 peers get theirs in 2 s, a flood is refused cheaply
	issueBurst      = 1000.0           //
	issueWait       = 5 * time.Second  // for a place among the concurrent
	reviewWait      = 5 * time.Second  // for the source's answer about a token
	renewJitter     = 0.1              // half-life ±10 %
	maxCSR          = 8 << 10          // a P-256 request has about 300 bytes
	maxToken        = 16 << 10         // projected tokens have about 1 KiB
	cacheBytes      = 16 << 20         // encodings kept, in each of two generations
	cacheEntries    = 8192             //
	entryOverhead   = 256              // bytes of bookkeeping counted per entry
	maxReason       = 256              // bytes of a peer's text that we log
	worldWait       = 10 * time.Second // at our start, for the first complete world
)

// around gives d ± share of it.
func around(d time.Duration, share float64) time.Duration {
	return d + time.Duration(float64(d)*share*(2*rand.Float64()-1))
}

// bucket limits a rate.
type bucket struct {
	mu          sync.Mutex
	rate, burst float64
	have        float64
	at          time.Time
}

func newBucket(rate, burst float64) *bucket {
	return &bucket{rate: rate, burst: burst, have: burst}
}

// take says whether there was one left.
func (b *bucket) take(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.at.IsZero() {
		b.have = min(b.burst, b.have+now.Sub(b.at).Seconds()*b.rate)
	}
	b.at = now
	if b.have < 1 {
		return false
	}
	b.have--
	return true
}

// cut shortens a peer's text.
func cut(s string) string {
	if len(s) > maxReason {
		return s[:maxReason] + "…"
	}
	return s
}
