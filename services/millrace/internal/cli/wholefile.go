package cli

import (
	"errors"
	"os"
	"path/filepath"
)

// wholeFile is a file that appears under its name when it is whole: keep or discard it.
type wholeFile struct {
	*os.File
	path string
	kept bool
}

// createWhole begins a file beside path. What cannot be written there is found out now, before hours of work.
func createWhole(path string) (*wholeFile, error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, usagef("%s is no regular file: it would be replaced; name another", path)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".millrace-*")
	if err != nil {
		return nil, usagef("write %s: %w", path, err)
	}
	return &wholeFile{File: f, path: path}, nil
}

// createUnlessEmpty is createWhole, or no file where no path is given.
func createUnlessEmpty(path string) (*wholeFile, error) {
	if path == "" {
		return nil, nil
	}
	return createWhole(path)
}

// keep gives the file its name, once its bytes are on the disk.
func (w *wholeFile) keep() error {
	err := errors.Join(w.Chmod(0o644), w.Sync(), w.Close())
	if err == nil {
		err = os.Rename(w.Name(), w.path)
	}
	w.kept = err == nil
	return err
}

// discard removes a file that was not kept; a nil one is none.
func (w *wholeFile) discard() {
	if w != nil && !w.kept {
		_ = w.Close() // what it holds is thrown away
		_ = os.Remove(w.Name())
	}
}

// writeWhole writes a file that appears when it is whole.
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
