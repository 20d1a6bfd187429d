package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// checkModels returns the problem of the value of --models and a value that works.
func checkModels(path string) error {
	info, err := os.Stat(path)
	name, isModel := strings.CutSuffix(filepath.Base(path), ".gguf")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("--models %q: there is no such folder: make it and put model files NAME.gguf there, or give the folder that has them", path)
	case err != nil:
		return fmt.Errorf("--models: %w", err)
	case info.IsDir():
		return nil
	case isModel:
		return fmt.Errorf("--models %q: is a file, want its folder: give --models %q --load %q", path, filepath.Dir(path), name)
	}
	return fmt.Errorf("--models %q: is a file, want a folder with model files NAME.gguf", path)
}
