package filecache_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/filecache"
)

// said is the value of the tests: the content of a file.
type said struct{ problem error }

// reader counts how often it is asked.
type reader struct {
	err   error
	count int
}

func (r *reader) read() (said, bool) {
	r.count++
	return said{r.err}, filecache.OfSystem(r.err)
}

func TestGetRemembersWhatBytesSay(t *testing.T) {
	malformed := errors.New("malformed")
	passing := func(n syscall.Errno) error {
		return fmt.Errorf("open: %w", &fs.PathError{Op: "open", Path: "f", Err: n})
	}
	for name, tc := range map[string]struct {
		says  error
		reads int // in three calls
	}{
		"a good file":      {nil, 1},
		"a malformed file": {malformed, 1},
		"EACCES":           {passing(syscall.EACCES), 3},
		"EMFILE":           {passing(syscall.EMFILE), 3},
		"ENOMEM":           {passing(syscall.ENOMEM), 3},
		"ESTALE":           {passing(syscall.ESTALE), 3},
		"EIO beside bytes": {errors.Join(malformed, passing(syscall.EIO)), 3},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "f")
			require.NoError(t, os.WriteFile(path, []byte("x"), 0o600))
			info, err := os.Stat(path)
			require.NoError(t, err)
			var c filecache.Cache[said]
			r := &reader{err: tc.says}
			for range 3 {
				require.Equal(t, said{tc.says}, c.Get("f", info, r.read))
			}
			require.Equal(t, tc.reads, r.count)
			r.err = nil
			c.Retain(func(string) bool { return false })
			require.NoError(t, c.Get("f", info, r.read).problem, "what is not retained is read again")
		})
	}
}

// Each change of a file is seen, also one that leaves its size and its time of modification as they
// were.
func TestGetReadsChangedFileAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	long := time.Now().Add(-time.Hour).Truncate(time.Second)
	write := func(text string) {
		t.Helper()
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		require.NoError(t, os.Chtimes(path, long, long))
	}
	write("old")
	for name, change := range map[string]func(){
		"size": func() { write("longer") },
		"bytes, under the old times": func() {
			time.Sleep(20 * time.Millisecond) // file systems count time in ticks
			write("others")
		},
		"mode": func() {
			time.Sleep(20 * time.Millisecond)
			require.NoError(t, os.Chmod(path, 0o640))
		},
		"another file of this name": func() {
			require.NoError(t, os.Rename(path, path+".old"))
			write("others")
		},
	} {
		t.Run(name, func(t *testing.T) {
			var c filecache.Cache[said]
			r := &reader{}
			get := func() {
				info, err := os.Stat(path)
				require.NoError(t, err)
				require.NoError(t, c.Get("f", info, r.read).problem)
			}
			get()
			get()
			require.Equal(t, 1, r.count)
			change()
			get()
			require.Equal(t, 2, r.count)
		})
	}
}

func TestGetSetReadsAgainIfAnyFileChanges(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) fs.FileInfo {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		info, err := os.Stat(path)
		require.NoError(t, err)
		return info
	}
	var c filecache.Cache[said]
	r := &reader{}
	a, b := put("a", "1"), put("b", "2")
	for i, set := range [][]fs.FileInfo{{a, b}, {a}, {b, a}, {a, put("b", "33")}} {
		for range 2 {
			c.GetSet("set", set, r.read)
		}
		require.Equal(t, i+1, r.count, "each other set is read once")
	}
}
