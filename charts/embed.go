// Package charts carries the Helm chart inside the CLI, so that "heddle
// install" installs exactly what Helm would. It holds data only; cmd/heddle
// reads it.
package charts

import "embed"

// Heddle is the chart, below the folder "heddle".
//
//go:embed all:heddle
var Heddle embed.FS
