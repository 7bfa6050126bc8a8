// Package key names the attributes of spans as OpenTelemetry's semantic
// conventions do, for who makes spans and must not link the SDK's types:
// sidecar/trace. What only Heddle knows ("heddle.…") is named where it is set.
package key

import semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

// Of HTTP spans (OTel semantic conventions, "HTTP spans").
const (
	HTTPMethod         = string(semconv.HTTPRequestMethodKey)
	HTTPMethodOriginal = string(semconv.HTTPRequestMethodOriginalKey)
	HTTPResends        = string(semconv.HTTPRequestResendCountKey)
	HTTPStatus         = string(semconv.HTTPResponseStatusCodeKey)
	URLPath            = string(semconv.URLPathKey)
	URLScheme          = string(semconv.URLSchemeKey)
	ErrorType          = string(semconv.ErrorTypeKey)
)

// Of the two sides and what is between them.
const (
	ServerAddress  = string(semconv.ServerAddressKey)
	ServerPort     = string(semconv.ServerPortKey)
	NetworkVersion = string(semconv.NetworkProtocolVersionKey)
	PeerAddress    = string(semconv.NetworkPeerAddressKey)
	PeerPort       = string(semconv.NetworkPeerPortKey)
)
