package protocol

import (
	"slices"

	"github.com/heddle-mesh/heddle/internal/redirect"
	"github.com/heddle-mesh/heddle/internal/source"
)

// maxBypass bounds the ports that are told of one pod's own address: beyond it
// the list would weigh more than all else that is told of it. Callers by pod IP
// then speak mTLS to the rest and are refused.
const maxBypass = 1024

// Bypassed are the inbound ports that a pod's redirect skips, ascending:
// dialled in plaintext, because nobody there speaks mTLS. Of a Service's
// endpoint those that it serves, which are few; of a pod's address (none
// given) all, as far as they may be told.
func Bypassed(p *source.Pod, served []uint32) []uint32 {
	var out []uint32
	admin := redirect.PortRange{First: redirect.AdminPort, Last: redirect.AdminPort} // always left alone, for scrapers
	for _, r := range append([]redirect.PortRange{admin}, p.SkipInbound...) {
		if len(served) > 0 {
			for _, n := range served {
				if n >= uint32(r.First) && n <= uint32(r.Last) {
					out = append(out, n)
				}
			}
			continue
		}
		for n := uint32(r.First); n <= uint32(r.Last) && len(out) < maxBypass; n++ {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
