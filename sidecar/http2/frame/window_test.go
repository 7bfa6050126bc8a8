package frame

import "testing"

func TestWindow(t *testing.T) {
	for _, tt := range []struct {
		name  string
		start Window
		do    func(w *Window) *Fault
		want  *Fault
		left  Window
	}{
		{"grows", 1, func(w *Window) *Fault { return w.Grow(5, 1) }, nil, 6},
		{"grows to the most", 1, func(w *Window) *Fault { return w.Grow(MaxWindow-1, 1) }, nil, MaxWindow},
		{"overflows", 1, func(w *Window) *Fault { return w.Grow(MaxWindow, 1) }, faultStreamWindow, MaxWindow + 1},
		{"connection's overflows", 1, func(w *Window) *Fault { return w.Grow(MaxWindow, 0) }, faultConnWindow, MaxWindow + 1},
		{"settings make it larger", 10, func(w *Window) *Fault { return w.Resize(100, 200) }, nil, 110},
		{"settings make it negative", 10, func(w *Window) *Fault { return w.Resize(100, 0) }, nil, -90},
		{"negative grows", -90, func(w *Window) *Fault { return w.Grow(100, 1) }, nil, 10},
		{"settings make it too large", 101, func(w *Window) *Fault { return w.Resize(100, MaxWindow) }, faultConnWindow, MaxWindow + 1},
		{"data", 10, func(w *Window) *Fault { return w.Receive(10, 1) }, nil, 0},
		{"too much data", 10, func(w *Window) *Fault { return w.Receive(11, 1) }, faultStreamFlow, -1},
		{"too much for the connection", 10, func(w *Window) *Fault { return w.Receive(11, 0) }, faultConnFlow, -1},
	} {
		w := tt.start
		if fault := tt.do(&w); fault != tt.want || w != tt.left {
			t.Errorf("%s: %v, not %v; %d", tt.name, fault, tt.want, w)
		}
	}
}
