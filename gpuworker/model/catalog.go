package model

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/filecache"
	"github.com/millrace/millrace/gpuworker/gguf"
)

const extension = ".gguf"

var nameRule = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*$`)

// CheckName returns ErrName unless name is the name of a model file: path elements of letters,
// digits and "._-", separated by "/", none starting with "." or "-".
func CheckName(name string) error {
	if len(name) > 255 || !nameRule.MatchString(name) {
		return fmt.Errorf("%w: %.64q; want letters, digits and \"._-\", with \"/\" between folders, without \"%s\"", ErrName, name, extension)
	}
	return nil
}

// Entry describes a model file.
type Entry struct {
	Name    string
	Bytes   uint64
	Problem error // why it cannot be loaded; the fields below are then unset
	Facts
}

// catalog finds model files in a directory. It never leaves the directory, by ".." or by symbolic
// links.
type catalog struct {
	dir    string
	device engine.Device
	cache  filecache.Cache[Entry] // by name
}

func newCatalog(dir string, device engine.Device) *catalog { return &catalog{dir: dir, device: device} }

// open opens the file of a model, or its files if it is split. The caller closes it.
func (c *catalog) open(name string) (*gguf.File, error) {
	root, files, err := c.locate(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }() // only read
	// Opened relative to root, so that no link can be swapped in between a check and the opening.
	// Errors name the file but not the folder, because remote callers see them.
	var fds []*os.File
	for _, file := range files.names {
		fd, err := root.OpenFile(filepath.FromSlash(file), gguf.OpenFlags, 0)
		if err != nil {
			for _, fd := range fds {
				_ = fd.Close() // only read
			}
			return nil, openError(root, strings.TrimSuffix(file, extension), err)
		}
		fds = append(fds, fd)
	}
	if len(fds) > 1 {
		f, err := gguf.OpenParts(fds)
		if err != nil {
			return nil, fmt.Errorf("open model %q: %w", name, err)
		}
		return f, nil
	}
	f, err := gguf.OpenFile(fds[0])
	if err != nil {
		return nil, fmt.Errorf("open model file %q: %w", name+extension, err)
	}
	return f, nil
}

// locate finds the files of a model. The caller closes root.
func (c *catalog) locate(name string) (_ *os.Root, files modelFiles, err error) {
	if err := CheckName(name); err != nil {
		return nil, files, err
	}
	root, err := os.OpenRoot(c.dir)
	if err != nil {
		return nil, files, fmt.Errorf("%w: models directory: %w", ErrNotFound, errors.Unwrap(err))
	}
	if files, err = locate(root, name); err != nil {
		_ = root.Close() // only read
		return nil, files, err
	}
	return root, files, nil
}

// openError explains why a file could not be opened, and what to do.
func openError(root *os.Root, name string, err error) error {
	link := false
	if info, statErr := root.Lstat(filepath.FromSlash(name) + extension); statErr == nil {
		link = info.Mode()&fs.ModeSymlink != 0
	}
	absent := errors.Is(err, fs.ErrNotExist)
	switch {
	case link && absent:
		return fmt.Errorf("%w: %q; the file is a symbolic link to nothing: remove it, or bring back what it leads to", ErrNotFound, name)
	case link && errors.Is(err, syscall.ELOOP):
		return fmt.Errorf("%w: %q; the file is a symbolic link that leads back to itself: remove it, or put the file there",
			ErrNotFound, name)
	case link && !errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: %q; the file is a symbolic link that leads out of the models directory: put the file itself there, "+
			"or give the worker the folder that holds it", ErrNotFound, name)
	case absent:
		return missingError(root, name)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: %q; the worker may not read the file: give it permission", ErrNotFound, name)
	}
	return fmt.Errorf("%w: %q: %w", ErrNotFound, name, err)
}

// list describes every model file, and every folder with a model in another format. An entry that
// cannot be loaded has the reason. An unchanged file is not read again, unless reading it failed in
// the operating system. Hidden files and folders are skipped.
func (c *catalog) list() []Entry {
	var entries []Entry
	seen, folders, splits := map[string]bool{}, layouts{}, map[string]divisions{}
	root, err := os.OpenRoot(c.dir)
	if err != nil {
		return nil
	}
	defer func() { _ = root.Close() }() // only read
	// Unreadable folders and entries are skipped.
	_ = fs.WalkDir(root.FS(), ".", func(file string, d fs.DirEntry, _ error) error {
		switch {
		case d == nil:
			return nil
		case file != "." && strings.HasPrefix(d.Name(), "."):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case d.IsDir():
			return nil
		case !strings.EqualFold(filepath.Ext(file), extension):
			folders.add(file, d)
			return nil
		}
		name, good := strings.CutSuffix(filepath.ToSlash(file), extension)
		if named := good && CheckName(name) == nil; !named {
			entries = append(entries, misnamedEntry(file, d, good))
			return nil
		}
		if model, number, count, ok := partOf(name); ok {
			if splits[model] == nil {
				splits[model] = divisions{}
			}
			splits[model].add(number, count)
			return nil
		}
		switch info, err := root.Stat(file); {
		case err == nil:
			seen[name] = true
			entries = append(entries, c.entry(name, modelFiles{infos: []fs.FileInfo{info}}))
		case d.Type()&fs.ModeSymlink != 0:
			entries = append(entries, Entry{Name: name, Problem: openError(root, name, err)})
		}
		return nil
	})
	for _, name := range slices.Sorted(maps.Keys(splits)) {
		entries = append(entries, c.splitEntry(root, name, splits[name], seen[name]))
		seen[name] = true
	}
	c.cache.Retain(func(name string) bool { return seen[name] })
	return append(entries, folders.entries(seen)...)
}

// misnamedEntry is the entry of a file whose name is not a valid model name. lower reports whether
// its extension is in lower case.
func misnamedEntry(file string, d fs.DirEntry, lower bool) Entry {
	e := Entry{Problem: fmt.Errorf("%w: rename the file with letters, digits and \"._-\" only, beginning with a letter or digit", ErrName)}
	if !lower {
		e.Problem = fmt.Errorf("%w: the extension is not %q in small letters: rename the file", ErrName, extension)
	}
	if info, err := d.Info(); err == nil {
		e.Bytes = uint64(max(info.Size(), 0))
	}
	e.Name = printable(filepath.ToSlash(file))
	return e
}

// printable replaces characters of a path that a terminal cannot show.
func printable(file string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return utf8.RuneError
		}
		return r
	}, file)
}

// entry describes one model.
func (c *catalog) entry(name string, files modelFiles) Entry {
	return c.cache.GetSet(name, files.infos, func() (e Entry, passing bool) {
		e = Entry{Name: name, Bytes: files.bytes()}
		f, err := c.open(name)
		if err == nil {
			e.Facts, err = readFacts(f, c.device)
			_ = f.Close() // opened for reading only
		}
		e.Problem = err
		return e, isSystemError(err)
	})
}

// isSystemError reports whether err comes from opening, mapping or reading a file, not from its
// content. It may pass although the file does not change.
func isSystemError(err error) bool {
	return errors.Is(err, ErrNotFound) || errors.Is(err, gguf.ErrFault) || filecache.OfSystem(err)
}

// problem returns why a model cannot be loaded, nil if its header is good. It reads the header
// again if the file changed.
func (c *catalog) problem(name string) error {
	root, files, err := c.locate(name)
	if err != nil {
		return err
	}
	_ = root.Close() // only read
	return c.entry(name, files).Problem
}

// layout counts the files of a folder that look like a Hugging Face model.
type layout struct {
	config, weights bool
	bytes           uint64 // of weights
}

const configName = "config.json"

// isWeights reports whether a file of this name holds weights in that layout.
func isWeights(name string) bool {
	return strings.HasSuffix(name, ".safetensors") || strings.HasPrefix(name, "pytorch_model") && strings.HasSuffix(name, ".bin")
}

// add counts a file of the folder.
func (l *layout) add(d fs.DirEntry) {
	switch name := d.Name(); {
	case name == configName:
		l.config = true
	case isWeights(name):
		l.weights = true
		if info, err := d.Info(); err == nil {
			l.bytes += uint64(max(info.Size(), 0))
		}
	}
}

func (l *layout) whole() bool { return l.config && l.weights }

// problem describes the folder and the next step. name is "." for the models directory.
func (l *layout) problem(name string) error {
	what, result := fmt.Sprintf("%q is a folder", name), path.Base(name)+extension
	if name == "." {
		what, result = "the models directory is itself a folder", "a file NAME"+extension
	}
	return fmt.Errorf("%w: %s of a model as Hugging Face has it (config.json and safetensors or PyTorch weights): convert it with "+
		"llama.cpp's convert_hf_to_gguf.py and put %s into the models directory, or download the model as GGUF", gguf.ErrFormat, what, result)
}

// layouts collects the folders of a directory walk.
type layouts map[string]*layout // by path

// add counts the file at a path in the models directory. Files that belong to no model take no
// memory, because the directory may contain anything.
func (l layouts) add(file string, d fs.DirEntry) {
	if d.Name() != configName && !isWeights(d.Name()) {
		return
	}
	dir := path.Dir(file)
	if l[dir] == nil {
		l[dir] = &layout{}
	}
	l[dir].add(d)
}

// entries describes the folders that hold a model, except names that a file has.
func (l layouts) entries(taken map[string]bool) (entries []Entry) {
	for _, dir := range slices.Sorted(maps.Keys(l)) {
		if l[dir].whole() && !taken[dir] {
			entries = append(entries, Entry{Name: printable(dir), Bytes: l[dir].bytes, Problem: l[dir].problem(printable(dir))})
		}
	}
	return entries
}

// missingError explains that a name has no file, and names the files that exist instead.
func missingError(root *os.Root, name string) error {
	files, err := fs.ReadDir(root.FS(), filepath.ToSlash(name))
	if err != nil { // no folder, or an unreadable one
		return fmt.Errorf("%w: %q; there is no file %q in the models directory", ErrNotFound, name, name+extension)
	}
	l, models := layout{}, []string{}
	for _, f := range files {
		l.add(f)
		model, ok := strings.CutSuffix(f.Name(), extension)
		if prefix, _, _, split := gguf.ParsePartName(f.Name()); split {
			model = prefix
		}
		if model = name + "/" + model; ok && CheckName(model) == nil && !slices.Contains(models, model) && len(models) < 5 {
			models = append(models, model)
		}
	}
	switch {
	case l.whole():
		return l.problem(name)
	case len(models) > 0:
		return fmt.Errorf("%w: %q is a folder; the models in it are called %s", ErrNotFound, name, strings.Join(models, ", "))
	}
	return fmt.Errorf("%w: %q is a folder, and no model in it is a file NAME%s", ErrNotFound, name, extension)
}

// Advice explains why a models directory has no model that can be loaded, and what to do. It
// returns "" if there is one.
func Advice(entries []Entry) string {
	var problems []error
	for _, e := range entries {
		if e.Problem == nil {
			return ""
		}
		problems = append(problems, fmt.Errorf("%s: %w", e.Name, e.Problem))
	}
	switch n := len(problems); {
	case n == 0:
		return "it holds no file NAME" + extension + ": put model files there, or give another folder with --models"
	case n > 3:
		problems = append(problems[:3], fmt.Errorf("and %d more, which `millrace models` lists", n-3))
	}
	return strings.ReplaceAll(errors.Join(problems...).Error(), "\n", "; ")
}
