package vectorcli

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/millrace/millrace/services/millrace/internal/failure"
)

// wholeFile is a file that appears under its name when it is complete. Call keep or discard.
type wholeFile struct {
	*os.File
	path string
	kept bool
}

// createWhole creates a temporary file in path's folder. It fails now if nothing can be written
// there, and not after hours of work.
func createWhole(path string) (*wholeFile, error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, failure.Usagef("%s is no regular file: it would be replaced; name another", path)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".millrace-*")
	if err != nil {
		return nil, failure.Usagef("write %s: %w", path, err)
	}
	return &wholeFile{File: f, path: path}, nil
}

// createUnlessEmpty is createWhole, or returns nil if path is empty.
func createUnlessEmpty(path string) (*wholeFile, error) {
	if path == "" {
		return nil, nil
	}
	return createWhole(path)
}

// keep renames the file once its bytes are on the disk.
func (w *wholeFile) keep() error {
	err := errors.Join(w.Chmod(0o644), w.Sync(), w.Close())
	if err == nil {
		err = os.Rename(w.Name(), w.path)
	}
	w.kept = err == nil
	return err
}

// discard removes a file that was not kept; nil has no effect.
func (w *wholeFile) discard() {
	if w != nil && !w.kept {
		_ = w.Close() // its content is not needed
		_ = os.Remove(w.Name())
	}
}

// writeWhole writes a file that appears when it is complete.
func writeWhole(path string, write func(*os.File) error) error {
	w, err := createWhole(path)
	if err != nil {
		return err
	}
	defer w.discard()
	if err := write(w.File); err != nil {
		return err
	}
	return w.keep()
}
