package control

import (
	"sync"

	pb "github.com/heddle-mesh/heddle/api/wire"
)

// outbox is what one stream still has to tell the control plane: at most one
// wish and one acknowledgement for each name, so it cannot grow without bound.
type outbox struct {
	mu     sync.Mutex
	sub    map[string]bool
	unsub  map[string]bool
	acks   map[string]*pb.Ack
	signal chan struct{}
}

func newOutbox() *outbox {
	return &outbox{sub: map[string]bool{}, unsub: map[string]bool{}, acks: map[string]*pb.Ack{}, signal: make(chan struct{}, 1)}
}

func (o *outbox) wake() {
	select {
	case o.signal <- struct{}{}:
	default:
	}
}

func (o *outbox) subscribe(name string) {
	o.mu.Lock()
	o.sub[name] = true
	o.mu.Unlock()
	o.wake()
}

func (o *outbox) unsubscribe(name string) {
	o.mu.Lock()
	delete(o.sub, name)
	o.unsub[name] = true
	o.mu.Unlock()
	o.wake()
}

func (o *outbox) ack(a *pb.Ack) {
	o.mu.Lock()
	o.acks[a.Name] = a
	o.mu.Unlock()
	o.wake()
}

// take gives all messages due, unsubscriptions first: a name in both sets was
// dropped and is wanted again.
func (o *outbox) take() []*pb.PeerMessage {
	o.mu.Lock()
	defer o.mu.Unlock()
	var out []*pb.PeerMessage
	if names := names(o.unsub); names != nil {
		out = append(out, &pb.PeerMessage{Message: &pb.PeerMessage_Unsubscribe{Unsubscribe: &pb.Unsubscribe{Names: names}}})
	}
	if names := names(o.sub); names != nil {
		out = append(out, &pb.PeerMessage{Message: &pb.PeerMessage_Subscribe{Subscribe: &pb.Subscribe{Names: names}}})
	}
	for _, a := range o.acks {
		out = append(out, &pb.PeerMessage{Message: &pb.PeerMessage_Ack{Ack: a}})
	}
	clear(o.sub)
	clear(o.unsub)
	clear(o.acks)
	return out
}

func names(set map[string]bool) []string {
	var out []string
	for name := range set {
		out = append(out, name)
	}
	return out
}
