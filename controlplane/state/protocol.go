package state

import (
	"slices"
	"strings"

	"github.com/heddle-mesh/heddle/api/wire"
	"github.com/heddle-mesh/heddle/internal/redirect"
	"github.com/heddle-mesh/heddle/internal/source"
)

func transport(protocol string) wire.Transport {
	switch protocol {
	case "UDP":
		return wire.Transport_TRANSPORT_UDP
	case "SCTP":
		return wire.Transport_TRANSPORT_SCTP
	}
	return wire.Transport_TRANSPORT_TCP
}

// protocolOf says what to speak to a port: its appProtocol (KEP-1507), else
// the first word of its name, else find out. An appProtocol that we do not
// know says nothing: it may be newer than we are.
func protocolOf(app, name, l4 string) wire.Protocol {
	if l4 != "TCP" && l4 != "" {
		return wire.Protocol_PROTOCOL_DETECT
	}
	switch strings.ToLower(app) {
	case "http", "kubernetes.io/ws":
		return wire.Protocol_PROTOCOL_HTTP1
	case "kubernetes.io/h2c", "http2", "h2c":
		return wire.Protocol_PROTOCOL_HTTP2
	case "grpc":
		return wire.Protocol_PROTOCOL_GRPC
	case "tcp", "heddle.dev/opaque":
		return wire.Protocol_PROTOCOL_TCP
	case "https", "tls", "kubernetes.io/wss":
		return wire.Protocol_PROTOCOL_TLS
	case "":
	default:
		if p := word(strings.ToLower(app)); p == wire.Protocol_PROTOCOL_TCP {
			return p // mysql and its like are names of IANA's too
		}
		return wire.Protocol_PROTOCOL_DETECT
	}
	first, _, _ := strings.Cut(strings.ToLower(name), "-")
	return word(first)
}

func word(s string) wire.Protocol {
	switch s {
	case "http", "http1", "ws":
		return wire.Protocol_PROTOCOL_HTTP1
	case "http2", "h2c":
		return wire.Protocol_PROTOCOL_HTTP2
	case "grpc":
		return wire.Protocol_PROTOCOL_GRPC
	case "tls", "https", "wss":
		return wire.Protocol_PROTOCOL_TLS
	case "tcp", "mysql", "mariadb", "postgres", "postgresql", "redis", "mongo", "mongodb", "memcached", "amqp", "kafka", "smtp", "ldap", "nats", "cassandra", "mssql", "galera":
		return wire.Protocol_PROTOCOL_TCP
	}
	return wire.Protocol_PROTOCOL_DETECT
}

// maxBypass bounds the ports that are told of one pod's own address: beyond it
// the list would weigh more than all else that is told of it. Callers by pod IP
// then speak mTLS to the rest and are refused.
const maxBypass = 1024

// bypassPorts are the inbound ports that a pod's redirect skips, ascending:
// dialled in plaintext, because nobody there speaks mTLS. Of a Service's
// endpoint those that it serves, which are few; of a pod's address (none
// given) all, as far as they may be told.
func bypassPorts(p *source.Pod, served []uint32) []uint32 {
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
