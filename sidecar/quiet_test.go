package sidecar

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestLogIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := limitLog(slog.New(slog.NewTextHandler(&out, nil))).With("a", "b")
		for range linesPerSecond + 30 {
			log.Info("refused")
		}
		if n := strings.Count(out.String(), "\n"); n != linesPerSecond {
			t.Errorf("%d lines", n)
		}
		out.Reset()
		time.Sleep(time.Second)
		log.Info("refused")
		log.Info("refused")
		if got := out.String(); strings.Count(got, "dropped_before=30") != 1 || strings.Count(got, "\n") != 2 {
			t.Errorf("then %q", got)
		}
	})
}
