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
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/filecache"
	"github.com/millrace/millrace/internal/codebookfile"
)

// File is what a codebook's file says of itself.
type File struct {
	Name    string
	Problem error // why it cannot be loaded; then the rest is unset
	Desc    engine.CodebookDesc
	Digest  engine.Digest // that people see
	raw     engine.Digest // of the codewords
}

// catalog finds codebook files below a directory, and writes them; it never leaves it, by ".." or by symbolic links.
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
	// Not blocking: a pipe would wait for who writes it.
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

// cause leaves out the path, which names the worker's folders.
func cause(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// read says what the file of a name says of itself.
func (c *catalog) read(name string) (File, error) {
	f, closer, err := c.open(name)
	if err != nil {
		return File{Name: name, Problem: err}, err
	}
	defer func() { _ = closer.Close() }() // only read
	desc := descOf(f.Codebook)
	return File{Name: name, Desc: desc, Digest: Digest(desc, f.Digest), raw: f.Digest}, nil
}

// list describes every codebook file, sorted by name, and says of those that cannot be loaded why. A file that did not change since
// the last call is not read again. Hidden files and folders, and names that no codebook may have, are none of its business.
func (c *catalog) list() []File {
	root, err := os.OpenRoot(c.dir)
	if err != nil {
		return nil
	}
	defer func() { _ = root.Close() }() // only read
	files := map[string]File{}
	// What cannot be read is not offered; such an error comes with a folder or with no entry at all.
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

// describe is a file as it was read when it was last changed. A link that leads nowhere is read each time, and says so, and so is a file
// that the system kept from being read.
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

// written is the beginning of the names of files that are being written. They are hidden.
const written = ".writing-"

// write writes a codebook's file, whole or not at all. One of that name is replaced, or is ErrExists.
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
	temporary := written + rand.Text()
	f, err := root.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = root.Remove(temporary) }() // it may be gone, under its new name
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

// abandoned is the age from which on nobody writes a file any more.
const abandoned = time.Hour

// sweep removes what was not written to its end when a worker ended.
func (c *catalog) sweep() {
	root, err := os.OpenRoot(c.dir)
	if err != nil {
		return
	}
	defer func() { _ = root.Close() }() // what matters is removed by then
	entries, _ := fs.ReadDir(root.FS(), ".")
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && strings.HasPrefix(e.Name(), written) && info.Mode().IsRegular() && time.Since(info.ModTime()) > abandoned {
			_ = root.Remove(e.Name()) // tried again at the next start
		}
	}
}
