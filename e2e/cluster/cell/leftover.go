package cell

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// stayDown takes the restart policies from the containers in dockerd's data.
// After a killed run they are still there, and a dockerd that starts would
// first of all start them again: whole nodes, only to be removed.
func stayDown(data string) error {
	files, err := filepath.Glob(filepath.Join(data, "containers", "*", "hostconfig.json"))
	if err != nil {
		return err
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if b, err = withoutRestart(b); err != nil {
			// dockerd writes it in one go; what cannot be read, it will not start.
			continue
		}
		if err := os.WriteFile(file, b, 0o600); err != nil {
			return fmt.Errorf("keep a dead run's container down: %w", err)
		}
	}
	return nil
}

// withoutRestart is a container's hostconfig.json with restart policy "no".
func withoutRestart(b []byte) ([]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	var host map[string]any
	if err := dec.Decode(&host); err != nil {
		return nil, err
	}
	host["RestartPolicy"] = map[string]any{"Name": "no", "MaximumRetryCount": 0}
	return json.Marshal(host)
}
