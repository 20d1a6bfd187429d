package filecache

import (
	"errors"
	"io/fs"
	"sync"
	"syscall"
)

// Cache holds one value for each file, by name. The zero value is empty. Safe for concurrent use.
type Cache[V any] struct {
	mu     sync.Mutex
	byName map[string]entry[V] // guarded by mu
}

type entry[V any] struct {
	identity identity
	value    V
}

// identity changes whenever the content or the mode of a file does. The zero value is that of no file.
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

// Get returns what read returned for a file of this name and identity, and calls read if that is not remembered. The value is
// remembered unless read says that passing is true: then the value depends on more than the bytes of the file. Two callers may read one
// file at the same time. info is from before the read, so that a file that changes during it is read again.
func (c *Cache[V]) Get(name string, info fs.FileInfo, read func() (value V, passing bool)) V {
	now := identityOf(info)
	c.mu.Lock()
	known, ok := c.byName[name]
	c.mu.Unlock()
	if ok && known.identity == now {
		return known.value
	}
	value, passing := read()
	c.mu.Lock()
	defer c.mu.Unlock()
	if passing || now == (identity{}) {
		delete(c.byName, name)
		return value
	}
	if c.byName == nil {
		c.byName = map[string]entry[V]{}
	}
	c.byName[name] = entry[V]{now, value}
	return value
}

// Retain forgets the files whose names stays rejects.
func (c *Cache[V]) Retain(stays func(name string) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.byName {
		if !stays(name) {
			delete(c.byName, name)
		}
	}
}

// OfSystem reports whether err comes from the operating system, not from the content of the file.
func OfSystem(err error) bool {
	var number syscall.Errno
	return errors.As(err, &number)
}
