//go:build nokube

package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/heddle-mesh/heddle/internal/source"
)

// openKube: the tag nokube leaves the Kubernetes client out, which is most of
// what takes long to compile.
func openKube(string, *slog.Logger) (source.Source, func(context.Context, string, []byte) error, error) {
	return nil, nil, errors.New("this program was built with the tag nokube: it knows files:DIR only")
}
