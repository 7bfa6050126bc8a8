package cell

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
)

// resource is what docker gives to privileged containers and some machines do
// not have to give.
const resource = "CAP_SYS_RESOURCE"

// Runtime is runc for a machine that lacks CAP_SYS_RESOURCE: it takes out of a
// container, or of a process to be run in one, what cannot be granted, and
// becomes runc. dockerd calls it with runc's arguments.
func Runtime(args []string) error {
	if file, whole := specOf(args); file != "" {
		if err := editSpec(file, whole); err != nil {
			return fmt.Errorf("make %s grantable: %w", file, err)
		}
	}
	runc, err := exec.LookPath("runc")
	if err != nil {
		return err
	}
	return syscall.Exec(runc, append([]string{"runc"}, args...), os.Environ())
}

// specOf finds the file that says what to run: a container's whole
// configuration, or one process's.
func specOf(args []string) (file string, whole bool) {
	value := func(names ...string) string {
		for i, a := range args[:max(len(args)-1, 0)] {
			if slices.Contains(names, a) {
				return args[i+1]
			}
		}
		return ""
	}
	switch {
	case slices.Contains(args, "create") || slices.Contains(args, "run"):
		if dir := value("--bundle", "-b"); dir != "" {
			return filepath.Join(dir, "config.json"), true
		}
	case slices.Contains(args, "exec"):
		return value("--process", "-p"), false
	}
	return "", false
}

func editSpec(file string, whole bool) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	b, err = grantable(b, whole)
	if err != nil {
		return err
	}
	return os.WriteFile(file, b, 0o600)
}

// grantable takes CAP_SYS_RESOURCE and negative OOM scores out of a runtime
// spec (OCI runtime-spec, config.md, "process") and leaves the rest as it is.
func grantable(spec []byte, whole bool) ([]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(spec))
	dec.UseNumber() // some are larger than a float holds
	var top map[string]any
	if err := dec.Decode(&top); err != nil {
		return nil, err
	}
	process := top
	if whole {
		process, _ = top["process"].(map[string]any)
	}
	caps, _ := process["capabilities"].(map[string]any)
	for set, v := range caps {
		if names, ok := v.([]any); ok {
			caps[set] = slices.DeleteFunc(names, func(n any) bool { return n == resource })
		}
	}
	if n, ok := process["oomScoreAdj"].(json.Number); ok && n != "" && n[0] == '-' {
		process["oomScoreAdj"] = 0
	}
	return json.Marshal(top)
}
