package balance

import (
	"net/netip"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/heddle-mesh/heddle/sidecar/breaker"
	"github.com/heddle-mesh/heddle/sidecar/retry"
)

// ledger holds the endpoint states of one destination through its versions.
// Pick never comes here.
type ledger struct {
	born time.Time // states count nanoseconds from here, monotonically

	mu       sync.Mutex
	version  uint64
	states   map[stateKey]*EndpointState
	accounts map[uint16]*account // by port of the destination
}

type stateKey struct {
	key  string
	addr netip.AddrPort
	id   spiffeid.ID
	own  bool
}

func newLedger() *ledger {
	return &ledger{born: time.Now(), states: map[stateKey]*EndpointState{}, accounts: map[uint16]*account{}}
}

// begin starts a version.
func (l *ledger) begin() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.version++
	return l.version
}

// state gives the endpoint's state, made at need, for the version being built.
func (l *ledger) state(k stateKey) *EndpointState {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.locked(k)
}

func (l *ledger) locked(k stateKey) *EndpointState {
	s := l.states[k]
	if s == nil {
		s = &EndpointState{born: l.born, gone: make(chan struct{})}
		l.states[k] = s
	}
	s.version = l.version
	return s
}

// account gives a port's, made at need, for the version being built.
func (l *ledger) account(port uint16) *account {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accounts[port]
	if a == nil {
		a = &account{budget: retry.NewBudget(), breaker: &breaker.Breaker{}}
		l.accounts[port] = a
	}
	a.version = l.version
	return a
}

// lazily is state for a port first asked for long after its version was built.
// A holder of an old version may ask: if the endpoint has left meanwhile it
// gets a state that is gone already, which nothing else shares.
func (l *ledger) lazily(version uint64, k stateKey) *EndpointState {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.states[k]; s != nil || version == l.version {
		return l.locked(k)
	}
	s := &EndpointState{born: l.born, gone: make(chan struct{})}
	close(s.gone)
	return s
}

// finish ends the building of a version: states that it neither asked for nor
// wants kept are gone.
func (l *ledger) finish(keep func(stateKey) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for k, s := range l.states {
		if s.version != l.version && !keep(k) {
			delete(l.states, k)
			close(s.gone)
		}
	}
	for port, a := range l.accounts {
		if a.version != l.version {
			delete(l.accounts, port)
		}
	}
}
