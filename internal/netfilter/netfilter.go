// Package netfilter writes a redirect plan into the kernel, by nftables over
// netlink or by iptables-restore, and reads it back. It is the only door to
// both. It decides nothing about what is redirected (internal/redirect does)
// and keeps no state: the kernel has it. sidecar/intercept calls it.
package netfilter

import (
	"context"
	"errors"
	"log/slog"

	"github.com/heddle-mesh/heddle/internal/redirect"
)

// Backend is a way to write rules into the kernel.
type Backend string

// The back ends. Auto is not one but asks for the first that works.
const (
	Auto           Backend = "auto"
	NFTables       Backend = "nftables"
	IptablesNFT    Backend = "iptables-nft"
	IptablesLegacy Backend = "iptables-legacy"
)

// Choose gives the back end to use: want itself if it works here, or for Auto
// the first that works.
func Choose(ctx context.Context, want Backend, log *slog.Logger) (Backend, error) {
	return "", errors.New("not built yet")
}

// Apply makes the kernel hold the plan and nothing else of ours in this back end.
func Apply(ctx context.Context, b Backend, p redirect.Plan) error { return errors.New("not built yet") }

// Clean removes all rules of ours in every back end but one ("": in all).
func Clean(ctx context.Context, keep Backend) error { return errors.New("not built yet") }

// Verify compares the kernel with the plan and says the first difference.
func Verify(ctx context.Context, b Backend, p redirect.Plan) error {
	return errors.New("not built yet")
}
