package frame

// Setting is one entry of a SETTINGS frame.
type Setting struct {
	ID    uint16
	Value uint32
}

// Identifiers of settings: RFC 9113, 6.5.2; RFC 8441, 3; RFC 9218, 2.1.
const (
	HeaderTableSize       = 1
	EnablePush            = 2
	MaxConcurrentStreams  = 3
	InitialWindowSize     = 4
	MaxFrameSize          = 5
	MaxHeaderListSize     = 6
	EnableConnectProtocol = 8
	NoRFC7540Priorities   = 9
)

const (
	// MaxWindow is the largest flow-control window, in bytes (RFC 9113, 6.9.1).
	MaxWindow = 1<<31 - 1
	// DefaultWindow is a window's size as long as no setting says otherwise, and
	// the connection's at the start (RFC 9113, 6.9.2).
	DefaultWindow = 1<<16 - 1
	// maxFrameSize is the most that a peer may take (RFC 9113, 4.2).
	maxFrameSize = 1<<24 - 1
)

// Settings are what a peer has said of itself so far.
type Settings struct {
	HeaderTableSize      uint32 // bytes its HPACK decoder keeps
	MaxConcurrentStreams uint32 // streams we may have open to it
	InitialWindowSize    uint32 // bytes a new stream may send to it
	MaxFrameSize         uint32 // bytes of payload it takes
	MaxHeaderListSize    uint32 // bytes of fields it takes, as RFC 9113, 6.5.2 counts; advice
	EnableConnect        bool   // it takes extended CONNECT (RFC 8441)
}

// DefaultSettings hold until the peer's first SETTINGS frame (RFC 9113, 6.5.2).
func DefaultSettings() Settings {
	return Settings{HeaderTableSize: 4096, MaxConcurrentStreams: 1<<32 - 1, InitialWindowSize: DefaultWindow,
		MaxFrameSize: MaxSize, MaxHeaderListSize: 1<<32 - 1}
}

var (
	faultTooMany   = connFault(EnhanceYourCalm, "more than 64 settings in one frame")
	faultEnable    = connFault(ProtocolError, "a setting that is yes or no has a value other than 0 and 1 (RFC 9113, 6.5.2)")
	faultPushed    = connFault(ProtocolError, "a server says SETTINGS_ENABLE_PUSH 1 (RFC 9113, 6.5.2)")
	faultWindow    = connFault(FlowControlError, "SETTINGS_INITIAL_WINDOW_SIZE above 2^31-1 (RFC 9113, 6.5.2)")
	faultFrameSize = connFault(ProtocolError, "SETTINGS_MAX_FRAME_SIZE out of bounds (RFC 9113, 6.5.2)")
	faultConnect   = connFault(ProtocolError, "SETTINGS_ENABLE_CONNECT_PROTOCOL taken back (RFC 8441, 3)")
)

// Apply takes the payload of a SETTINGS frame, its entries in their order;
// unknown ones are ignored. fromServer tells who said it.
func (s *Settings) Apply(payload []byte, fromServer bool) *Fault {
	if len(payload) > 6*maxSettings {
		return faultTooMany
	}
	for p := payload; len(p) >= 6; p = p[6:] {
		if fault := s.set(Setting{uint16(p[0])<<8 | uint16(p[1]), number(p[2:])}, fromServer); fault != nil {
			return fault
		}
	}
	return nil
}

func (s *Settings) set(e Setting, fromServer bool) *Fault {
	v := e.Value
	switch e.ID {
	case HeaderTableSize:
		s.HeaderTableSize = v
	case EnablePush:
		// We never push: that a client forbids it needs no note.
		switch {
		case v > 1:
			return faultEnable
		case v == 1 && fromServer:
			return faultPushed
		}
	case MaxConcurrentStreams:
		s.MaxConcurrentStreams = v
	case InitialWindowSize:
		if v > MaxWindow {
			return faultWindow
		}
		s.InitialWindowSize = v
	case MaxFrameSize:
		if v < MaxSize || v > maxFrameSize {
			return faultFrameSize
		}
		s.MaxFrameSize = v
	case MaxHeaderListSize:
		s.MaxHeaderListSize = v
	case EnableConnectProtocol:
		switch {
		case v > 1:
			return faultEnable
		case v == 0 && s.EnableConnect:
			return faultConnect
		}
		s.EnableConnect = v == 1
	case NoRFC7540Priorities:
		if v > 1 {
			return faultEnable
		}
	}
	return nil
}
