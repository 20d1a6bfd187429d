package model

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/millrace/millrace/gpuworker/gguf"
)

// modelFiles are the files of one model: one, or the parts of a split model in the order of their
// numbers.
type modelFiles struct {
	names []string // paths in the models directory, with "/"
	infos []fs.FileInfo
}

func (m modelFiles) bytes() (sum uint64) {
	for _, info := range m.infos {
		sum += uint64(max(info.Size(), 0))
	}
	return sum
}

// partOf reads a name without its extension. If it is that of a part, model is the name of the split
// model, by which it is listed and loaded.
func partOf(name string) (model string, number, count int, ok bool) {
	prefix, number, count, ok := gguf.ParsePartName(path.Base(name) + extension)
	return path.Join(path.Dir(name), prefix), number, count, ok
}

// locate finds the files of a model by name. A file NAME.gguf goes before the parts of a split model
// of the same name.
func locate(root *os.Root, name string) (modelFiles, error) {
	file := name + extension
	info, err := root.Stat(filepath.FromSlash(file))
	if err == nil {
		if model, number, count, ok := partOf(name); ok {
			return modelFiles{}, fmt.Errorf("%w: %q is part %d of the %d files of one model, which is called %q: use that name",
				ErrNotFound, name, number, count, model)
		}
		return modelFiles{[]string{file}, []fs.FileInfo{info}}, nil
	}
	if _, linkErr := root.Lstat(filepath.FromSlash(file)); errors.Is(linkErr, fs.ErrNotExist) {
		if found := findDivisions(root, name); len(found) > 0 {
			return found.files(root, name)
		}
	}
	return modelFiles{}, openError(root, name, err)
}

// divisions are the parts of one split model that a folder has: their numbers, by the number of
// files that each name states.
type divisions map[int][]int

func (d divisions) add(number, count int) { d[count] = append(d[count], number) }

// findDivisions looks for parts of a model in its folder.
func findDivisions(root *os.Root, name string) divisions {
	found := divisions{}
	entries, err := fs.ReadDir(root.FS(), path.Dir(name))
	if err != nil { // an unreadable folder has no models
		return nil
	}
	for _, e := range entries {
		if prefix, number, count, ok := gguf.ParsePartName(e.Name()); ok && prefix == path.Base(name) && !e.IsDir() {
			found.add(number, count)
		}
	}
	return found
}

// files returns the files of the model. If some are missing, it returns an error and the files that
// exist.
func (d divisions) files(root *os.Root, name string) (files modelFiles, err error) {
	counts := slices.Sorted(maps.Keys(d))
	count := counts[0]
	if err := gguf.CheckPartCount(count); err != nil {
		return files, fmt.Errorf("model %q: %w", name, err)
	}
	if len(counts) > 1 {
		return files, fmt.Errorf("%w: model %q: the folder has parts of a division into %d files and of one into %d: remove all but one",
			gguf.ErrFormat, name, count, counts[1])
	}
	var missing []string
	for number := 1; number <= count; number++ {
		file := gguf.PartName(name, number, count)
		if !slices.Contains(d[count], number) {
			missing = append(missing, path.Base(file))
			continue
		}
		info, statErr := root.Stat(filepath.FromSlash(file))
		if statErr != nil {
			err = errors.Join(err, fmt.Errorf("part %d of %d of model %q: %w", number, count, name,
				openError(root, strings.TrimSuffix(file, extension), statErr)))
			continue
		}
		files.names, files.infos = append(files.names, file), append(files.infos, info)
	}
	if n := len(missing); n > 0 {
		which := strings.Join(missing[:min(n, 3)], ", ")
		if n > 3 {
			which += fmt.Sprintf(" and %d more", n-3)
		}
		return files, fmt.Errorf("%w: model %q is split into %d files and %d of them are missing: put %s into the same folder",
			gguf.ErrFormat, name, count, n, which)
	}
	return files, err
}

// splitEntry describes a split model. taken reports that another file has its name.
func (c *catalog) splitEntry(root *os.Root, name string, found divisions, taken bool) Entry {
	files, err := found.files(root, name)
	switch {
	case taken:
		counts := slices.Sorted(maps.Keys(found))
		first := gguf.PartName(name, slices.Min(found[counts[0]]), counts[0])
		return Entry{Name: strings.TrimSuffix(first, extension), Bytes: files.bytes(), Problem: fmt.Errorf(
			"%w: the file %q has the name of this split model: remove or rename the file, or the parts", gguf.ErrFormat, path.Base(name)+extension)}
	case err != nil:
		return Entry{Name: name, Bytes: files.bytes(), Problem: err}
	}
	return c.entry(name, files)
}
