package cell

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Found is a run folder that was there.
type Found struct {
	ID   string
	Kept bool // its owner left it on purpose
}

// Reap removes the cells below runs whose owner is dead and did not keep them,
// and gives those that live.
func Reap(runs string) (alive []Found, err error) {
	unlock, err := lockRuns(runs)
	if err != nil {
		return nil, err
	}
	defer unlock()
	entries, err := os.ReadDir(runs)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		path := filepath.Join(runs, e.Name())
		s, err := readState(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("read the state of run %s: %w", e.Name(), err))
			continue
		}
		if s.Cell.lives() && s.Kept || s.Owner.lives() && !s.Kept {
			alive = append(alive, Found{ID: e.Name(), Kept: s.Kept})
			continue
		}
		errs = append(errs, end(path, s))
	}
	for _, top := range cellCgroups("*") {
		id := strings.TrimPrefix(filepath.Base(top), cgroupPrefix[1:])
		if _, err := os.Stat(filepath.Join(runs, id)); errors.Is(err, fs.ErrNotExist) && runs == Runs {
			removeCgroups([]string{top})
		}
	}
	return alive, errors.Join(errs...)
}

// Remove ends a cell, kept or not, and removes its run folder.
func Remove(runs, id string) error {
	if id == "" || id != filepath.Base(id) || id[0] == '.' {
		return fmt.Errorf("%q is no run's name", id)
	}
	unlock, err := lockRuns(runs)
	if err != nil {
		return err
	}
	defer unlock()
	path := filepath.Join(runs, id)
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("there is no run %s: %w", id, err)
	}
	s, err := readState(path)
	if err != nil {
		return fmt.Errorf("read the state of run %s: %w", id, err)
	}
	if s.Owner.lives() && !s.Kept {
		return fmt.Errorf("run %s is at work: end its owner, process %d", id, s.Owner.PID)
	}
	return end(path, s)
}

// end kills a cell and waits until all of it is gone.
func end(path string, s state) error {
	if s.Cell.PID > 0 {
		if err := s.Cell.kill(); err != nil {
			return err
		}
	}
	late := time.NewTimer(goneLimit)
	defer late.Stop()
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		lock, ok, err := tryLock(filepath.Join(path, "lock"))
		if err != nil {
			return err
		}
		if ok && !s.Cell.lives() {
			defer lock.Close()
			return (&Dir{path: path}).wipe()
		}
		if ok {
			lock.Close()
		}
		select {
		case <-tick.C:
		case <-late.C:
			return fmt.Errorf("run %s: something still holds %s", filepath.Base(path), filepath.Join(path, "lock"))
		}
	}
}
