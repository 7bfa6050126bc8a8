//go:build nokube

package main

import (
	"errors"
	"log/slog"

	"github.com/heddle-mesh/heddle/internal/source"
)

// openKube: the tag nokube leaves the Kubernetes client out, which is most of
// what takes long to compile.
func openKube(string, *slog.Logger) (source.Source, error) {
	return nil, errors.New("this program was built with the tag nokube: it knows --source=files:DIR only")
}
