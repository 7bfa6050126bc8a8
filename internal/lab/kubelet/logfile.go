package kubelet

import (
	"fmt"
	"os"
)

// maxLog bounds a log file; with the one before it (".1") a container keeps at
// most twice that.
const maxLog = 16 << 20

// logFile is a file that is set aside when it is full. Not for concurrent use.
type logFile struct {
	path string
	max  int64
	f    *os.File
	size int64
}

func openLog(path string) (*logFile, error) {
	l := &logFile{path: path, max: maxLog}
	return l, l.open()
}

func (l *logFile) open() error {
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return fmt.Errorf("open log: %w", err)
	}
	l.f, l.size = f, st.Size()
	return nil
}

func (l *logFile) Write(b []byte) (int, error) {
	if l.size > 0 && l.size+int64(len(b)) > l.max {
		l.f.Close()
		if err := os.Rename(l.path, l.path+".1"); err != nil {
			return 0, fmt.Errorf("rotate log: %w", err)
		}
		if err := l.open(); err != nil {
			return 0, err
		}
	}
	n, err := l.f.Write(b)
	l.size += int64(n)
	return n, err
}

func (l *logFile) Close() { l.f.Close() }
