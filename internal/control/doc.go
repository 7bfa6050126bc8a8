// Package control is the peer's side of the wire, of sidecars and of the node
// agent: it gets the program's
// identity with its projected token and renews it, holds the one stream to the
// control plane, and keeps what stands at the addresses that the sidecar
// dials, newest version only, on demand.
//
// It does not know what callers make of a destination (Config.Compile does)
// and decides nothing about a connection. sidecar.Run starts it; sidecar/outbound
// asks it. While the control plane cannot be reached everything it holds stays
// valid: see Client.Lookup for what becomes of addresses it does not hold.
package control
