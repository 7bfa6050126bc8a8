package link

import (
	"time"

	"github.com/heddle-mesh/heddle/sidecar/http2/frame"
)

var (
	quitDone  = connFault(frame.NoError, "")
	quitAck   = connFault(frame.SettingsTimeout, "SETTINGS were not sent or acknowledged in 10 s")
	quitBlock = connFault(frame.EnhanceYourCalm, "a header block did not come in whole in 30 s")
)

// Sweep ends what has waited too long, forgives, and takes draining a step
// further. It is to be called once a second, until Serve has returned.
func (c *Conn) Sweep() {
	c.mu.Lock()
	c.pays(forgiven)
	c.age++
	c.idle++
	if len(c.streams) > 0 {
		c.idle = 0
	}
	if c.blocking {
		c.inBlock++
	}
	switch {
	case seconds(c.age) >= ackTimeout && !(c.acked && c.began):
		c.stop(quitAck)
	case c.blocking && seconds(c.inBlock) >= blockTimeout:
		c.stop(quitBlock)
	case c.c.Server && seconds(c.idle) >= idleTimeout:
		c.stop(quitDone)
	case c.drain > 0:
		c.drainStep()
	}
	c.unlock()
	c.Flush()
}

func seconds(n int) time.Duration { return time.Duration(n) * sweepEvery }

// Drain ends the connection as soon as no stream is open. Sweep does the rest: a
// client is warned first, told a sweep later which of its streams are the last,
// so that those under way to us are served, too (RFC 9113, 6.8).
func (c *Conn) Drain() {
	c.mu.Lock()
	if c.drain == 0 {
		c.drain = 1
		c.gone = true
		if c.c.Server {
			c.out = frame.AppendGoAway(c.space(frame.HeaderLen+8), maxID, frame.NoError, "")
		}
	}
	c.unlock()
	c.Flush()
}

func (c *Conn) drainStep() {
	if c.drain++; c.drain == 2 && c.c.Server {
		c.lastSaid = c.lastPeer
		c.out = frame.AppendGoAway(c.space(frame.HeaderLen+8), c.lastPeer, frame.NoError, "")
	}
	if c.drain >= 2 && len(c.streams) == 0 {
		c.stop(quitDone)
	}
}

// stop has Serve end.
func (c *Conn) stop(why *frame.Fault) {
	if c.quit == nil {
		c.quit = why
		c.c.Conn.SetReadDeadline(past)
	}
}

// Stop ends the connection with all its streams; NoError: as a server that goes
// away.
func (c *Conn) Stop(code frame.Code) {
	c.mu.Lock()
	c.stop(connFault(code, ""))
	c.unlock()
}
