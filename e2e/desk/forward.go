package desk

import "net/http"

// forwarded are the fields that an application of a mesh passes on to whom it
// asks on behalf of a request: its ID, and its trace (W3C, B3).
var forwarded = []string{IDField, "Traceparent", "Tracestate", "Baggage", "B3",
	"X-B3-Traceid", "X-B3-Spanid", "X-B3-Parentspanid", "X-B3-Sampled", "X-B3-Flags"}

// Forward copies to a call what the request that it is made for says of itself.
func Forward(to, from http.Header) {
	for _, name := range forwarded {
		if v := from.Values(name); len(v) > 0 {
			to[name] = v
		}
	}
}
