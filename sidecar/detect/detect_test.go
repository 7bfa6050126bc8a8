package detect

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

// recorder keeps the first flight that a TLS client writes.
type recorder struct {
	net.Conn
	sent bytes.Buffer
}

func (r *recorder) Write(b []byte) (int, error)      { return r.sent.Write(b) }
func (r *recorder) Read([]byte) (int, error)         { return 0, errors.New("recorded") }
func (r *recorder) SetDeadline(time.Time) error      { return nil }
func (r *recorder) SetReadDeadline(time.Time) error  { return nil }
func (r *recorder) SetWriteDeadline(time.Time) error { return nil }
func (r *recorder) Close() error                     { return nil }

// goHello is what Go's own client sends.
func goHello(cfg *tls.Config) []byte {
	r := &recorder{}
	_ = tls.Client(r, cfg).Handshake() // fails at its first read
	return r.sent.Bytes()
}

// split cuts a hello's one record into records of at most n bytes.
func split(hello []byte, n int) []byte {
	var out []byte
	for body := hello[recordHeader:]; len(body) > 0; {
		k := min(n, len(body))
		out = append(out, 22, 3, 1)
		out = binary.BigEndian.AppendUint16(out, uint16(k))
		out = append(out, body[:k]...)
		body = body[k:]
	}
	return out
}

// hello builds a ClientHello from raw extensions (nil: none at all).
func hello(extensions []byte) []byte {
	body := append([]byte{3, 3}, make([]byte, 32)...)
	body = append(body, 0, 0, 2, 0x13, 0x01, 1, 0)
	if extensions != nil {
		body = binary.BigEndian.AppendUint16(body, uint16(len(extensions)))
		body = append(body, extensions...)
	}
	message := append([]byte{1, 0, byte(len(body) >> 8), byte(len(body))}, body...)
	return append([]byte{22, 3, 1, byte(len(message) >> 8), byte(len(message))}, message...)
}

func ext(kind int, data string) string {
	return string([]byte{byte(kind >> 8), byte(kind), byte(len(data) >> 8), byte(len(data))}) + data
}

const (
	alpnH1   = "\x00\x0a\x09heddle/h1"
	sniShop  = "\x00\x0c\x00\x00\x09shop.test"
	greaseEx = 0x0a0a
)

func TestClientHello(t *testing.T) {
	plain := goHello(&tls.Config{ServerName: "orders.shop", NextProtos: []string{"heddle/h1", "heddle/tcp"}})
	bare := goHello(&tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12})
	both := Hello{SNI: "orders.shop", ALPN: []string{"heddle/h1", "heddle/tcp"}}
	long := hello([]byte(ext(0x1234, strings.Repeat("x", MaxClientHello-recordHeader-handshakeHeader-47))))
	tests := []struct {
		name    string
		in      []byte
		verdict Verdict
		hello   Hello
	}{
		{"Go's client", plain, TLS, both},
		{"more behind it", append(slices.Clone(plain), "early data"...), TLS, both},
		{"TLS 1.2, nothing asked", bare, TLS, Hello{}},
		{"records of one byte", split(plain, 1), TLS, both},
		{"records of 100", split(plain, 100), TLS, both},
		{"no extensions", hello(nil), TLS, Hello{}},
		{"empty extensions", hello([]byte{}), TLS, Hello{}},
		{"GREASE", hello([]byte(ext(greaseEx, "") + ext(16, "\x00\x0d\x02\x0a\x0a\x09heddle/h1") + ext(0x1a1a, "\x00"))), TLS,
			Hello{ALPN: []string{"\x0a\x0a", "heddle/h1"}}},
		{"SNI and ALPN", hello([]byte(ext(0, sniShop) + ext(16, alpnH1))), TLS, Hello{SNI: "shop.test", ALPN: []string{"heddle/h1"}}},
		{"as long as we take", long, TLS, Hello{}},

		{"nothing", nil, NeedMore, Hello{}},
		{"first byte", plain[:1], NeedMore, Hello{}},
		{"half", plain[:len(plain)/2], NeedMore, Hello{}},
		{"all but one", plain[:len(plain)-1], NeedMore, Hello{}},
		{"HTTP", []byte("GET / HTTP/1.1\r\n\r\n"), No, Hello{}},
		{"other version", []byte{22, 2}, No, Hello{}},
		{"empty record", []byte{22, 3, 1, 0, 0}, No, Hello{}},
		{"record too long", []byte{22, 3, 1, 0x40, 1}, No, Hello{}},
		{"server's hello", []byte{22, 3, 3, 0, 40, 2}, No, Hello{}},
		{"alert", []byte{21, 3, 3, 0, 2, 1, 0}, No, Hello{}},

		{"message over the bound", []byte{22, 3, 1, 1, 0, 1, 1, 0, 0}, Malformed, Hello{}},
		{"second record of other kind", []byte{22, 3, 1, 0, 1, 1, 23}, Malformed, Hello{}},
		{"empty second record", []byte{22, 3, 1, 0, 1, 1, 22, 3, 1, 0, 0}, Malformed, Hello{}},
		{"ALPN twice", hello([]byte(ext(16, alpnH1) + ext(16, alpnH1))), Malformed, Hello{}},
		{"SNI twice", hello([]byte(ext(0, sniShop) + ext(0, sniShop))), Malformed, Hello{}},
		{"two host names", hello([]byte(ext(0, "\x00\x08\x00\x00\x01a\x00\x00\x01b"))), Malformed, Hello{}},
		{"empty ALPN list", hello([]byte(ext(16, "\x00\x00"))), Malformed, Hello{}},
		{"empty ALPN name", hello([]byte(ext(16, "\x00\x01\x00"))), Malformed, Hello{}},
		{"ALPN beyond its extension", hello([]byte(ext(16, "\x00\x0b\x09heddle/h1"))), Malformed, Hello{}},
		{"extension beyond the list", hello([]byte{0, 16, 0, 9, 1}), Malformed, Hello{}},
		{"empty body", []byte{22, 3, 1, 0, 4, 1, 0, 0, 0}, Malformed, Hello{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, v := ClientHello(tt.in)
			if v != tt.verdict || got.SNI != tt.hello.SNI || !slices.Equal(got.ALPN, tt.hello.ALPN) {
				t.Errorf("%v %+v, want %v %+v", v, got, tt.verdict, tt.hello)
			}
			if alpn, v := ClientHelloALPN(tt.in); v != tt.verdict || !slices.Equal(alpn, tt.hello.ALPN) {
				t.Errorf("ALPN %q %v", alpn, v)
			}
			checkFinal(t, tt.in, func(b []byte) Verdict { _, v := ClientHello(b); return v })
		})
	}
	// A hello that promises 16 KB in records of one byte never fits.
	slow := split(long, 1)
	if _, v := ClientHello(slow[:MaxClientHello-1]); v != NeedMore {
		t.Errorf("below the bound: %v", v)
	}
	if _, v := ClientHello(slow[:MaxClientHello]); v != Malformed {
		t.Errorf("at the bound: %v", v)
	}
	if _, v := ClientHello(slow); v != Malformed {
		t.Errorf("beyond the bound: %v", v)
	}
}

func TestRequest(t *testing.T) {
	longTarget := "GET /" + strings.Repeat("a", MaxRequestLine)
	tests := []struct {
		in   string
		want Verdict
	}{
		{"GET / HTTP/1.1\r\n", HTTP1},
		{"GET / HTTP/1.0\r\nHost: x\r\n\r\n", HTTP1},
		{"POST http://shop.test/a HTTP/1.1\r\n", HTTP1},
		{"CONNECT shop.test:443 HTTP/1.1\r\n", HTTP1},
		{"OPTIONS * HTTP/1.1\r\n", HTTP1},
		{"PROPFIND /dav HTTP/1.1\r\n", HTTP1},
		{"UPDATEREDIRECTREF /x HTTP/1.1\r\n", HTTP1},
		{"M-SEARCH * HTTP/1.1\r\n", HTTP1},
		{"PUT /x HTTP/1.1\r\n", HTTP1},
		{"PRI * HTTP/1.1\r\n", HTTP1},
		{"\r\nGET / HTTP/1.1\r\n", HTTP1},
		// Wrong in a detail, but HTTP: the codec refuses it.
		{"GET / HTTP/1.1\n", HTTP1},
		{"GET /a b HTTP/1.1\r\n", HTTP1},
		{"GET /\xc3\xbc HTTP/1.1\r\n", HTTP1},
		{longTarget, HTTP1},

		{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", HTTP2},
		{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00", HTTP2},

		{"", NeedMore},
		{"G", NeedMore},
		{"GET", NeedMore},
		{"GET ", NeedMore},
		{"GET /abc HTTP/1.1", NeedMore},
		{"GET /abc HTTP/1.1\r", NeedMore},
		{"\r", NeedMore},
		{"\r\n", NeedMore},
		{"\r\n\r", NeedMore},
		{"PRI * HTTP/2.0\r\n\r\n", NeedMore},

		{"GET / HTTP/2.0\r\n", No},
		{"GET / HTTP/1.x\r\n", No},
		{"GET / http/1.1\r\n", No},
		{"GET  HTTP/1.1\r\n", No},
		{"GET HTTP/1.1\r\n", No},
		{"PRI * HTTP/2.0\r\n\r\nXX", No},
		{"GET /\r\n", No},                                    // HTTP/0.9
		{"get key\r\n", No},                                  // memcached
		{"GET key\r\n", No},                                  // Redis, inline
		{"*1\r\n$4\r\nPING\r\n", No},                         // Redis
		{"PING\r\n", No},                                     // many
		{"EHLO client.test\r\n", No},                         // SMTP
		{"USER anonymous\r\n", No},                           // FTP
		{"SSH-2.0-OpenSSH_9.9\r\n", No},                      // SSH
		{"INVITE sip:a@b SIP/2.0\r\n", No},                   // SIP
		{"CONNECT {\"verbose\":false}\r\n", No},              // NATS
		{"\x16\x03\x01\x02\x00\x01", No},                     // TLS
		{"\x00\x00\x00\x08\x04\xd2\x16\x2f", No},             // PostgreSQL, asks for TLS
		{"\x10\x16\x00\x04MQTT\x04\x02", No},                 // MQTT
		{"AMQP\x00\x00\x09\x01", No},                         // AMQP
		{"GET \x00\x01 HTTP/1.1\r\n", No},                    // binary in the target
		{"GET /\x7f HTTP/1.1\r\n", No},                       // DEL in the target
		{"GET /\rX HTTP/1.1\r\n", No},                        // CR in the target
		{"GET\t/ HTTP/1.1\r\n", No},                          // not a space
		{" GET / HTTP/1.1\r\n", No},                          // leading space
		{"\r\n\r\n\r\nGET / HTTP/1.1\r\n", No},               // too many empty lines
		{strings.Repeat("A", maxMethod+1), No},               // no method is so long
		{"SET k " + strings.Repeat("a", MaxRequestLine), No}, // a long line, but not HTTP's
	}
	for _, tt := range tests {
		if got := Request([]byte(tt.in)); got != tt.want {
			t.Errorf("%.60q: %v, want %v", tt.in, got, tt.want)
		}
		checkFinal(t, []byte(tt.in), Request)
	}
}

// checkFinal holds the promise of the package: a verdict never changes.
func checkFinal(t *testing.T, b []byte, judge func([]byte) Verdict) {
	t.Helper()
	last := NeedMore
	for n := range len(b) + 1 {
		if n > 512 && n < len(b)-64 {
			continue // quadratic otherwise
		}
		v := judge(b[:n:n])
		if last != NeedMore && v != last {
			t.Fatalf("%.60q: %v after %d bytes, then %v", b, last, n-1, v)
		}
		last = v
	}
}

func TestNoAllocation(t *testing.T) {
	in := []byte("GET /a/long/path?with=query HTTP/1.1\r\nHost: shop\r\n\r\n")
	if n := testing.AllocsPerRun(100, func() { Request(in) }); n != 0 {
		t.Errorf("Request: %v allocations", n)
	}
}

func FuzzClientHello(f *testing.F) {
	h := goHello(&tls.Config{ServerName: "orders.shop", NextProtos: []string{"heddle/h1"}})
	f.Add(h, uint16(10))
	f.Add(split(h, 7), uint16(100))
	f.Add(hello([]byte(ext(0, sniShop)+ext(16, alpnH1))), uint16(6))
	f.Add([]byte("GET / HTTP/1.1\r\n"), uint16(1))
	f.Fuzz(func(t *testing.T, b []byte, cut uint16) {
		got, v := ClientHello(b)
		if v == HTTP1 || v == HTTP2 || (v != TLS && (got.SNI != "" || got.ALPN != nil)) {
			t.Fatalf("%v with %+v", v, got)
		}
		if len(b) >= MaxClientHello && v == NeedMore {
			t.Fatal("never ends")
		}
		n := min(int(cut), len(b))
		if before, w := ClientHello(b[:n:n]); w != NeedMore && (w != v || before.SNI != got.SNI || !slices.Equal(before.ALPN, got.ALPN)) {
			t.Fatalf("%v %+v at %d, then %v %+v", w, before, n, v, got)
		}
	})
}

func FuzzRequest(f *testing.F) {
	for _, s := range []string{"GET / HTTP/1.1\r\n", preface, "\r\nPOST /x HTTP/1.0\r\n", "PING\r\n", "\x16\x03\x01", "PRI * HTTP/1.1\r\n"} {
		f.Add([]byte(s), uint16(5))
	}
	f.Fuzz(func(t *testing.T, b []byte, cut uint16) {
		v := Request(b)
		if v == TLS || v == Malformed || len(b) >= MaxRequestLine && v == NeedMore {
			t.Fatal(v)
		}
		if v == HTTP1 && len(b) < MaxRequestLine && !bytes.Contains(b, []byte(" HTTP/1.")) {
			t.Fatalf("%q called HTTP", b)
		}
		n := min(int(cut), len(b))
		if w := Request(b[:n:n]); w != NeedMore && w != v {
			t.Fatalf("%v at %d, then %v", w, n, v)
		}
	})
}
