package model

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// look returns the problem of the file of a name, nil if its header allows a load. A header is read again
// when the file has changed.
func (c *catalog) look(name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	root, err := os.OpenRoot(c.dir)
	if err != nil {
		return fmt.Errorf("%w: models directory: %w", ErrNotFound, errors.Unwrap(err))
	}
	defer func() { _ = root.Close() }() // only read
	info, err := root.Stat(filepath.FromSlash(name) + extension)
	if err != nil {
		return unopened(root, name, err)
	}
	return c.describe(name, info).Problem
}
