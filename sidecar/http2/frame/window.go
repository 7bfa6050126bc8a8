package frame

// Window is how many bytes of DATA may still flow in one direction of a stream,
// or of a connection (RFC 9113, 6.9). Below 0 it can be after the peer made its
// SETTINGS_INITIAL_WINDOW_SIZE smaller.
type Window int64

var (
	faultStreamWindow = &Fault{FlowControlError, true, "window of a stream above 2^31-1 (RFC 9113, 6.9.1)"}
	faultConnWindow   = connFault(FlowControlError, "window of the connection, or of all streams, above 2^31-1 (RFC 9113, 6.9)")
	faultStreamFlow   = &Fault{FlowControlError, true, "more data than the stream's window lets (RFC 9113, 6.9.1)"}
	faultConnFlow     = connFault(FlowControlError, "more data than the connection's window lets (RFC 9113, 6.9.1)")
)

// Grow takes a WINDOW_UPDATE for the stream, 0 is the connection.
func (w *Window) Grow(increment, stream uint32) *Fault {
	*w += Window(increment)
	switch {
	case *w <= MaxWindow:
		return nil
	case stream == 0:
		return faultConnWindow
	}
	return faultStreamWindow
}

// Resize takes another SETTINGS_INITIAL_WINDOW_SIZE, for each stream there is;
// the connection's window is not meant (RFC 9113, 6.9.2).
func (w *Window) Resize(before, after uint32) *Fault {
	*w += Window(after) - Window(before)
	if *w > MaxWindow {
		return faultConnWindow
	}
	return nil
}

// Receive takes Frame.Flow bytes that came on the stream, 0 is the connection,
// against what was granted to the peer.
func (w *Window) Receive(flow, stream uint32) *Fault {
	*w -= Window(flow)
	switch {
	case *w >= 0:
		return nil
	case stream == 0:
		return faultConnFlow
	}
	return faultStreamFlow
}
