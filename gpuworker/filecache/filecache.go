package filecache

import (
	"errors"
	"io/fs"
	"slices"
	"sync"
	"syscall"
)

// Cache holds one value for each file or set of files, by name. The zero value is empty. Safe for concurrent use.
type Cache[V any] struct {
	mu struct {
		sync.Mutex
		byName map[string]entry[V]
	}
}

type entry[V any] struct {
	identities []identity // of the files, in the caller's order
	value      V
}

// identity changes whenever the content or the mode of a file does. The zero value identifies no
// file.
type identity struct {
	device, inode     uint64
	size              int64
	modified, changed syscall.Timespec
}

func identityOf(info fs.FileInfo) identity {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return identity{}
	}
	return identity{device: st.Dev, inode: st.Ino, size: st.Size, modified: st.Mtim, changed: st.Ctim}
}

// Get is GetSet for one file.
func (c *Cache[V]) Get(name string, info fs.FileInfo, read func() (value V, passing bool)) V {
	return c.GetSet(name, []fs.FileInfo{info}, read)
}

// GetSet returns the cached value of the files of this name and these identities, or calls read. The
// value is cached unless read returns passing = true, which means that the value depends on more
// than the files' bytes. Two callers may read one file at the same time. infos must be from before
// the read, so that a file that changes during the read is read again.
func (c *Cache[V]) GetSet(name string, infos []fs.FileInfo, read func() (value V, passing bool)) V {
	now := make([]identity, len(infos))
	for i, info := range infos {
		now[i] = identityOf(info)
	}
	c.mu.Lock()
	known, ok := c.mu.byName[name]
	c.mu.Unlock()
	if ok && slices.Equal(known.identities, now) {
		return known.value
	}
	value, passing := read()
	c.mu.Lock()
	defer c.mu.Unlock()
	if passing || slices.Contains(now, identity{}) {
		delete(c.mu.byName, name)
		return value
	}
	if c.mu.byName == nil {
		c.mu.byName = map[string]entry[V]{}
	}
	c.mu.byName[name] = entry[V]{now, value}
	return value
}

// Retain drops the values whose names stays rejects.
func (c *Cache[V]) Retain(stays func(name string) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.mu.byName {
		if !stays(name) {
			delete(c.mu.byName, name)
		}
	}
}

// OfSystem reports whether err comes from the operating system, not from the content of the file.
func OfSystem(err error) bool {
	var number syscall.Errno
	return errors.As(err, &number)
}
