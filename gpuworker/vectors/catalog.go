package vectors

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/filecache"
	"github.com/millrace/millrace/internal/codebookfile"
)

// File has the metadata of a codebook's file.
type File struct {
	Name    string
	Problem error // why it cannot be loaded; the rest is unset then
	Desc    engine.CodebookDesc
	Digest  engine.Digest // the public one
	raw     engine.Digest // of the codewords
}

// catalog finds codebook files in a directory and its subdirectories, and writes them. It never
// leaves the directory, by ".." or by symbolic links.
type catalog struct {
	dir   string
	cache filecache.Cache[File] // by name
}

func newCatalog(dir string) *catalog { return &catalog{dir: dir} }

func pathOf(name string) string { return filepath.FromSlash(name) + extension }

// open opens a file of the directory; the caller closes it.
func (c *catalog) open(name string) (*codebookfile.File, io.Closer, error) {
	if err := CheckName(name); err != nil {
		return nil, nil, err
	}
	missing := func(err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%w: there is no file %q in the codebooks directory", ErrNotFound, name+extension)
		}
		return fmt.Errorf("%w: file %q in the codebooks directory cannot be opened: %w", ErrNotFound, name+extension, cause(err))
	}
	root, err := os.OpenRoot(c.dir)
	if err != nil {
		return nil, nil, missing(err)
	}
	defer func() { _ = root.Close() }() // only read
	// Not blocking: opening a pipe would wait for its writer.
	fd, err := root.OpenFile(pathOf(name), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, missing(err)
	}
	info, err := fd.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is no regular file")
	}
	var f *codebookfile.File
	if err == nil {
		f, err = codebookfile.Parse(fd, info.Size())
	}
	if err != nil {
		_ = fd.Close() // only read
		return nil, nil, fmt.Errorf("%w: %q: %w", ErrFile, name+extension, err)
	}
	return f, fd, nil
}

// cause drops the path from an error, because it names the worker's folders.
func cause(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// read reads the metadata of a file.
func (c *catalog) read(name string) (File, error) {
	f, closer, err := c.open(name)
	if err != nil {
		return File{Name: name, Problem: err}, err
	}
	defer func() { _ = closer.Close() }() // only read
	desc := descOf(f.Codebook)
	return File{Name: name, Desc: desc, Digest: Digest(desc, f.Digest), raw: f.Digest}, nil
}

// list describes every codebook file, sorted by name, with the reason if it cannot be loaded. A
// file that did not change since the last call is not read again. Hidden files and folders, and
// invalid names, are skipped.
func (c *catalog) list() []File {
	root, err := os.OpenRoot(c.dir)
	if err != nil {
		return nil
	}
	defer func() { _ = root.Close() }() // only read
	files := map[string]File{}
	// An unreadable file is not offered; such an error comes with a folder or with no entry at all.
	_ = fs.WalkDir(root.FS(), ".", func(path string, d fs.DirEntry, _ error) error {
		switch {
		case d == nil:
			return nil
		case path != "." && strings.HasPrefix(d.Name(), ".") && d.IsDir():
			return fs.SkipDir
		}
		if name, is := strings.CutSuffix(filepath.ToSlash(path), extension); is && !d.IsDir() && CheckName(name) == nil {
			files[name] = c.describe(root, name)
		}
		return nil
	})
	c.cache.Retain(func(name string) bool {
		_, stays := files[name]
		return stays
	})
	return slices.SortedFunc(maps.Values(files), func(a, b File) int { return cmp.Compare(a.Name, b.Name) })
}

// describe returns the metadata of a file as of its last change. A broken link is read each time,
// and so is a file that the system could not read.
func (c *catalog) describe(root *os.Root, name string) File {
	info, err := root.Stat(pathOf(name))
	if err != nil {
		f, _ := c.read(name) // the error is in it
		return f
	}
	return c.cache.Get(name, info, func() (File, bool) {
		f, err := c.read(name)
		return f, errors.Is(err, ErrNotFound) || filecache.OfSystem(err)
	})
}

// writing begins the names of files that are being written. They are hidden.
const writing = ".writing-"

// write writes a codebook's file completely or not at all. It replaces a file of that name, or
// returns ErrExists.
func (c *catalog) write(name string, book codebookfile.Codebook, codewords []byte, replace bool) (err error) {
	defer func() {
		if err != nil && !errors.Is(err, ErrExists) {
			err = fmt.Errorf("%w: %q: %w", ErrWrite, name+extension, cause(err))
		}
	}()
	if err := os.MkdirAll(c.dir, 0o750); err != nil {
		return err
	}
	root, err := os.OpenRoot(c.dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // its files are closed by then
	path := pathOf(name)
	if err := root.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	temporary := writing + rand.Text()
	f, err := root.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = root.Remove(temporary) }() // it may have its final name by now
	err = codebookfile.Write(f, book, bytes.NewReader(codewords), codebookfile.History{})
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if replace {
		return root.Rename(temporary, path)
	}
	if err := root.Link(temporary, path); errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: %q", ErrExists, name)
	} else if err != nil { // a file system without links
		return root.Rename(temporary, path)
	}
	return nil
}

// abandoned is the age at which an unfinished file has no writer any more.
const abandoned = time.Hour

// sweep removes the unfinished files of workers that ended.
func (c *catalog) sweep() {
	root, err := os.OpenRoot(c.dir)
	if err != nil {
		return
	}
	defer func() { _ = root.Close() }() // everything important is removed by then
	entries, _ := fs.ReadDir(root.FS(), ".")
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && strings.HasPrefix(e.Name(), writing) && info.Mode().IsRegular() && time.Since(info.ModTime()) > abandoned {
			_ = root.Remove(e.Name()) // tried again at the next start
		}
	}
}

// extension of codebook files.
const extension = ".safetensors"

// maxName leaves room in a file's name, of at most 255 bytes, for the extension and for the prefix
// that it has while it is written.
const maxName = 200

var nameRule = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*$`)

// deviceRule matches names that some systems reserve for devices, with any text after a dot.
var deviceRule = regexp.MustCompile(`(?i)^(con|prn|aux|nul|com[0-9]|lpt[0-9])(\.|$)`)

// CheckName refuses an invalid name. A name is steps of letters, digits and "._-" divided by "/".
// No step begins with "." or "-" or is a device's.
func CheckName(name string) error {
	if len(name) > maxName || !nameRule.MatchString(name) {
		return fmt.Errorf("%w: %.64q; want at most %d letters, digits and \"._-\", with \"/\" between folders, without \"%s\"",
			ErrName, name, maxName, extension)
	}
	for step := range strings.SplitSeq(name, "/") {
		if deviceRule.MatchString(step) || strings.HasSuffix(step, ".") {
			return fmt.Errorf("%w: %.64q; %q is a device on some systems, or ends in a dot: choose another name", ErrName, name, step)
		}
	}
	return nil
}
