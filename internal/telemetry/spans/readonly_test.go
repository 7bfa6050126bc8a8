package spans

import (
	"reflect"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// A method that the embedded interface would answer panics: it is nil.
func TestReadOnlyIsWhole(t *testing.T) {
	s := newOrigin(Resource{}, "").readable([]*Span{{Start: time.Now()}})[0]
	all := reflect.TypeFor[sdk.ReadOnlySpan]()
	for i := range all.NumMethod() {
		m := all.Method(i)
		if !m.IsExported() {
			continue
		}
		func() {
			defer func() {
				if r := recover(); r != nil {
					t.Errorf("%s is not ours: %v", m.Name, r)
				}
			}()
			reflect.ValueOf(s).MethodByName(m.Name).Call(nil)
		}()
	}
}
