package vectors_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/gpuworker/vectors"
)

var pair = engine.CodebookDesc{Dimension: 1, Codewords: 2, Subspaces: 1, Type: engine.VectorF16}

func (r *rig) put(t *testing.T, name string, codewords ...byte) error {
	t.Helper()
	a, err := r.Put(name, pair, nil, false)
	require.NoError(t, err)
	defer a.Close()
	require.NoError(t, a.Write(codewords))
	_, _, err = a.Finish(t.Context())
	return err
}

func TestNames(t *testing.T) {
	for _, good := range []string{"a", "A_b-c.d", "a/b/c", "9", "_x", "console", "com", "nul2", "a.con", strings.Repeat("x", 200)} {
		require.NoError(t, vectors.CheckName(good), good)
	}
	for _, bad := range []string{"", ".", "..", "a/..", "/a", "con", "Nul.x", "x/aux", "a.", "é", "a\n", strings.Repeat("x", 201)} {
		require.ErrorIs(t, vectors.CheckName(bad), vectors.ErrName, bad)
	}
}

func TestWriteErrorsLeaveNoFile(t *testing.T) {
	// An error in writing a file is reported and leaves no part of the file.
	r := newRig(t, nil)
	require.NoError(t, r.put(t, "a", 0, 0, 0, 0x3c))
	require.ErrorIs(t, r.put(t, "a", 0, 0, 0, 0x40), vectors.ErrExists)
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, "file"), nil, 0o600))
	require.ErrorIs(t, r.put(t, "file/b", 0, 0, 0, 0x3c), vectors.ErrWrite)
	require.NoError(t, os.Symlink(t.TempDir(), filepath.Join(r.dir, "out")))
	require.ErrorIs(t, r.put(t, "out/b", 0, 0, 0, 0x3c), vectors.ErrWrite, "a link does not lead out of the directory")
	require.NoError(t, os.Mkdir(filepath.Join(r.dir, "dir.safetensors"), 0o750))
	require.ErrorIs(t, r.put(t, "dir", 0, 0, 0, 0x3c), vectors.ErrExists)
	require.NoError(t, unix.Mkfifo(filepath.Join(r.dir, "pipe.safetensors"), 0o600))
	_, _, err := r.Load(t.Context(), "pipe", nil)
	require.ErrorIs(t, err, vectors.ErrFile)
	require.Len(t, r.Loaded(), 1)
	require.EqualValues(t, 4, r.held(t))
	entries, err := os.ReadDir(r.dir)
	require.NoError(t, err)
	for _, e := range entries {
		require.False(t, strings.HasPrefix(e.Name(), "."), e.Name())
	}
}

func TestWhatADeadWorkerLeftHalfWrittenIsRemoved(t *testing.T) {
	dir := t.TempDir()
	old, fresh, other := filepath.Join(dir, ".writing-OLD"), filepath.Join(dir, ".writing-NEW"), filepath.Join(dir, ".hidden")
	for _, path := range []string{old, fresh, other} {
		require.NoError(t, os.WriteFile(path, nil, 0o600))
	}
	long := time.Now().Add(-2 * time.Hour)
	require.NoError(t, os.Chtimes(old, long, long))
	require.NoError(t, os.Chtimes(other, long, long))
	device, err := sim.Open(sim.Options{}, hclog.NewNullLogger())
	require.NoError(t, err)
	m := vectors.NewManager(vectors.Config{Dir: dir}, device, hclog.NewNullLogger())
	require.NoError(t, m.Close()) // waits for it
	require.NoError(t, device.Close())
	_, err = os.Stat(old)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.FileExists(t, fresh, "somebody may write it")
	require.FileExists(t, other)
}

func TestChangedFileIsReadAgain(t *testing.T) {
	r := newRig(t, nil)
	require.NoError(t, r.put(t, "a", 0, 0, 0, 0x3c))
	was := r.Files()
	require.Len(t, was, 1)
	require.Equal(t, pair, was[0].Desc)
	path := filepath.Join(r.dir, "a.safetensors")
	require.NoError(t, os.WriteFile(path, []byte("something else"), 0o600))
	require.ErrorIs(t, r.Files()[0].Problem, vectors.ErrFile)
	require.NoError(t, os.Remove(path))
	require.Empty(t, r.Files())
	require.Len(t, r.List(), 1, "it is loaded still")
}

func TestResidentCodebooksAreCheckedAgainAndAgain(t *testing.T) {
	r := newRig(t, func(c *vectors.Config) { c.VerifyInterval = time.Millisecond })
	require.NoError(t, r.put(t, "a", 0, 0, 0, 0x3c))
	book, release, err := r.Acquire("a", nil)
	require.NoError(t, err)
	require.NoError(t, book.FlipBit(0))
	release()
	require.Eventually(t, func() bool { return r.Loaded()[0].State == vectors.Failed }, time.Minute, time.Millisecond)
	require.ErrorIs(t, r.Loaded()[0].Problem, vectors.ErrCorrupt)
}

func TestUnloadWaitsForCalls(t *testing.T) {
	// Calls that use a codebook end before it is unloaded.
	r := newRig(t, nil)
	require.NoError(t, r.put(t, "a", 0, 0, 0, 0x3c))
	book, release, err := r.Acquire("a", nil)
	require.NoError(t, err)
	unloaded := make(chan error, 1)
	go func() {
		_, err := r.Unload(t.Context(), "a")
		unloaded <- err
	}()
	require.Eventually(t, func() bool {
		_, again, err := r.Acquire("a", nil)
		if err == nil {
			again()
		}
		return err != nil
	}, time.Minute, time.Millisecond, "nobody new gets it")
	rows, err := book.Decode(t.Context(), []byte{1})
	require.NoError(t, err)
	require.Equal(t, []byte{0, 0x3c}, rows)
	select {
	case err := <-unloaded:
		require.Fail(t, "it is unloaded under its user", "%v", err)
	default:
	}
	release()
	require.NoError(t, <-unloaded)
	require.Zero(t, r.held(t))
}
