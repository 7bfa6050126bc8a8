// Package protocol says how a port is spoken to, by what its Service or pod says
// of it: the transport, what runs on it, and whether a pod's redirect skips it,
// so that nobody there speaks mTLS. It looks at no bytes: a port that nothing is
// said of is looked at by the sidecar. controlplane/state calls it.
package protocol

import (
	"strings"

	"github.com/heddle-mesh/heddle/api/wire"
)

// Transport reads a port's protocol field; empty means TCP.
func Transport(protocol string) wire.Transport {
	switch protocol {
	case "UDP":
		return wire.Transport_TRANSPORT_UDP
	case "SCTP":
		return wire.Transport_TRANSPORT_SCTP
	}
	return wire.Transport_TRANSPORT_TCP
}

// Of says what to speak to a port: its appProtocol (KEP-1507), else
// the first word of its name, else find out. An appProtocol that we do not
// know says nothing: it may be newer than we are.
func Of(app, name, l4 string) wire.Protocol {
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
