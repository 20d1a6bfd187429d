package model

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/filecache"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/tokenizer"
)

const extension = ".gguf"

var nameRule = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*$`)

// CheckName refuses what is not the name of a model file: path steps of letters, digits and "._-", none beginning with
// "." or "-", divided by "/".
func CheckName(name string) error {
	if len(name) > 255 || !nameRule.MatchString(name) {
		return fmt.Errorf("%w: %.64q; want letters, digits and \"._-\", with \"/\" between folders, without \"%s\"", ErrName, name, extension)
	}
	return nil
}

// Entry is what a model file says of itself.
type Entry struct {
	Name    string
	Bytes   uint64
	Problem error // why it cannot be loaded; then the rest is unset
	Facts
}

// Facts is what a model can do.
type Facts struct {
	Architecture string
	Quantization string
	Context      int // longest sequence it was made for
	Vocabulary   int
	Parameters   uint64
	WeightBytes  uint64
	HasTokenizer bool
	HasTemplate  bool     // that no name chooses
	Templates    []string // names of further ones, ascending
	BOS, EOS     int32    // -1: none
	EndIDs       []int32
	// SuppressedIDs are the tokens that the file forbids to generate, ascending.
	SuppressedIDs []int32
	// Sampling is how the file recommends to sample.
	Sampling Sampling
}

// catalog finds model files below a directory; it never leaves it, by ".." or by symbolic links.
type catalog struct {
	dir   string
	cache filecache.Cache[Entry] // by name
}

func newCatalog(dir string) *catalog { return &catalog{dir: dir} }

// open opens the file of a name. The caller closes it.
func (c *catalog) open(name string) (*gguf.File, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(c.dir)
	if err != nil {
		return nil, fmt.Errorf("%w: models directory: %w", ErrNotFound, errors.Unwrap(err))
	}
	defer func() { _ = root.Close() }() // only read
	// Opened below the root, so that a link cannot come between a look and the opening. Callers far away see these
	// errors: they name the file, not the folder.
	fd, err := root.OpenFile(filepath.FromSlash(name)+extension, gguf.OpenFlags, 0)
	if err != nil {
		return nil, unopened(root, name, err)
	}
	f, err := gguf.OpenFile(fd)
	if err != nil {
		return nil, fmt.Errorf("open model file %q: %w", name+extension, err)
	}
	return f, nil
}

// unopened says why the file of a name could not be opened, and what to do.
func unopened(root *os.Root, name string, err error) error {
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
		return missing(root, name)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: %q; the worker may not read the file: give it permission", ErrNotFound, name)
	}
	return fmt.Errorf("%w: %q: %w", ErrNotFound, name, err)
}

// list describes every model file, and every folder that holds a model in another format. An entry that cannot be offered has the
// reason. A file that has not changed since the last call is not read again, unless reading it failed in the system. Hidden files and
// folders are left out.
func (c *catalog) list() []Entry {
	var entries []Entry
	seen, folders := map[string]bool{}, layouts{}
	root, err := os.OpenRoot(c.dir)
	if err != nil {
		return nil
	}
	defer func() { _ = root.Close() }() // only read
	// What cannot be read is not offered; such an error comes with a folder or with no entry at all.
	_ = fs.WalkDir(root.FS(), ".", func(path string, d fs.DirEntry, _ error) error {
		switch {
		case d == nil:
			return nil
		case path != "." && strings.HasPrefix(d.Name(), "."):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case d.IsDir():
			return nil
		case !strings.EqualFold(filepath.Ext(path), extension):
			folders.add(path, d)
			return nil
		}
		name, good := strings.CutSuffix(filepath.ToSlash(path), extension)
		if named := good && CheckName(name) == nil; !named {
			entries = append(entries, misnamed(path, d, good))
			return nil
		}
		switch info, err := root.Stat(path); {
		case err == nil:
			seen[name] = true
			entries = append(entries, c.describe(name, info))
		case d.Type()&fs.ModeSymlink != 0:
			entries = append(entries, Entry{Name: name, Problem: unopened(root, name, err)})
		}
		return nil
	})
	c.cache.Retain(func(name string) bool { return seen[name] })
	return append(entries, folders.entries(seen)...)
}

// misnamed is the entry of a file that no name leads to; lower tells whether its extension is written in small letters.
func misnamed(path string, d fs.DirEntry, lower bool) Entry {
	e := Entry{Problem: fmt.Errorf("%w: rename the file with letters, digits and \"._-\" only, beginning with a letter or digit", ErrName)}
	if !lower {
		e.Problem = fmt.Errorf("%w: the extension is not %q in small letters: rename the file", ErrName, extension)
	}
	if info, err := d.Info(); err == nil {
		e.Bytes = uint64(max(info.Size(), 0))
	}
	e.Name = printable(filepath.ToSlash(path))
	return e
}

// printable is a path as a terminal can show it.
func printable(path string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return utf8.RuneError
		}
		return r
	}, path)
}

func (c *catalog) describe(name string, info fs.FileInfo) Entry {
	return c.cache.Get(name, info, func() (e Entry, passing bool) {
		e = Entry{Name: name, Bytes: uint64(max(info.Size(), 0))}
		f, err := c.open(name)
		if err == nil {
			e.Facts, err = facts(f)
			_ = f.Close() // opened for reading only
		}
		e.Problem = err
		return e, ofSystem(err)
	})
}

// ofSystem reports whether err is about opening, mapping or reading a file, and not about its bytes. It may pass without a change of the
// file.
func ofSystem(err error) bool {
	return errors.Is(err, ErrNotFound) || errors.Is(err, gguf.ErrFault) || filecache.OfSystem(err)
}

func facts(f *gguf.File) (Facts, error) {
	m, err := arch.Parse(f)
	if err != nil {
		return Facts{}, err
	}
	tok, err := readTokenizer(f)
	if err != nil {
		return Facts{}, err
	}
	all, err := readTemplates(f)
	if err != nil {
		return Facts{}, err
	}
	return describe(f, m, tok, all)
}

func describe(f *gguf.File, m *arch.Model, tok *tokenizer.Tokenizer, all templates) (Facts, error) {
	facts := Facts{
		Architecture: m.Architecture, Quantization: m.Quantization, Context: m.Desc.Context, Vocabulary: m.Desc.Vocab,
		Parameters: m.Parameters, WeightBytes: m.Bytes, HasTokenizer: tok != nil, HasTemplate: all.unnamed != "",
		Templates: slices.Sorted(maps.Keys(all.named)),
		BOS:       tokenizer.None, EOS: tokenizer.None,
	}
	if tok != nil {
		facts.BOS, facts.EOS, facts.EndIDs = tok.Special().BOS, tok.Special().EOS, tok.EndOfGeneration()
	}
	facts.Sampling = readSampling(f.Metadata(), m.Desc.Vocab)
	var err error
	facts.SuppressedIDs, err = suppressedIDs(f.Metadata(), m.Desc.Vocab)
	return facts, err
}

// suppressedIDs returns the tokens that the file forbids to generate, ascending. Numbers that are no token's forbid nothing.
func suppressedIDs(meta *gguf.Metadata, vocabulary int) ([]int32, error) {
	listed, _, err := meta.Ints("tokenizer.ggml.suppress_tokens")
	if err != nil {
		return nil, err
	}
	var ids []int32
	for _, id := range listed {
		if id >= 0 && id < int64(vocabulary) {
			ids = append(ids, int32(id))
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// readTokenizer returns nil for a file without one, or whose tokenizer is called "no_vocab" or "none", as converters write where
// they left it out: such a model works by token ids.
func readTokenizer(f *gguf.File) (*tokenizer.Tokenizer, error) {
	kind, ok, err := f.Metadata().String("tokenizer.ggml.model")
	if err != nil || !ok || kind == "no_vocab" || kind == "none" {
		return nil, err
	}
	return tokenizer.New(f.Metadata())
}
