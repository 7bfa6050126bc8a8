package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestGroupFirstToReturnStopsAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGroup(context.Background())
		boom := errors.New("boom")
		ended := false
		g.Go("waits", func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(time.Second) // a slow end is waited for
			ended = true
			return ctx.Err()
		})
		g.Go("fails", func(context.Context) error { return boom })
		err := g.Wait()
		if !errors.Is(err, boom) || !strings.HasPrefix(err.Error(), "fails: ") {
			t.Errorf("Wait = %v", err)
		}
		if !ended {
			t.Error("Wait returned before the other part had ended")
		}
	})
}

func TestGroupCancelledIsClean(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	g := NewGroup(ctx)
	g.Go("part", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	cancel()
	if err := g.Wait(); err != nil {
		t.Errorf("Wait = %v", err)
	}
}

func TestMainExitCodes(t *testing.T) {
	var out strings.Builder
	if code := Main(&out, "prog", func(context.Context) error { return errors.New("no such file") }); code != 1 || out.String() != "prog: no such file\n" {
		t.Errorf("code %d, stderr %q", code, out.String())
	}
	out.Reset()
	if code := Main(&out, "prog", func(context.Context) error { return fmt.Errorf("run: %w", Exit(3)) }); code != 3 || out.String() != "" {
		t.Errorf("code %d, stderr %q", code, out.String())
	}
	if code := Main(io.Discard, "prog", func(context.Context) error { return nil }); code != 0 {
		t.Errorf("clean end gives %d", code)
	}
}
