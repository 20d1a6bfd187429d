package model

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/gpuworker/gguf"
)

func TestLoadsThatWaitForTheirTurnAreBounded(t *testing.T) {
	m, _ := manager(t, 1<<30)
	m.cfg.MaxLoads = 3
	require.NoError(t, m.loadSlot.Acquire(t.Context(), 1))
	gone, leave := context.WithCancel(t.Context())
	leave()
	for i := range 3 {
		_, _, err := m.Load(gone, fmt.Sprintf("nobody-%d", i), Options{}, nil)
		require.ErrorIs(t, err, context.Canceled)
	}
	_, _, err := m.Load(t.Context(), "small", Options{}, nil)
	require.ErrorIs(t, err, ErrTooManyLoads)
	_, _, err = m.Load(gone, "nobody-1", Options{}, nil)
	require.ErrorIs(t, err, context.Canceled, "one more caller of a load is no load more")
	m.loadSlot.Release(1)
	require.Eventually(t, func() bool { return len(m.Loaded()) == 0 }, time.Minute, time.Millisecond)
	_, _, err = m.Load(t.Context(), "small", Options{}, nil)
	require.NoError(t, err)
}

func TestALoadThatCannotBeginIsGivenUpInTheEnd(t *testing.T) {
	dir := folder(t)
	synctest.Test(t, func(t *testing.T) {
		device, err := sim.Open(sim.Options{Memory: 1 << 30}, hclog.NewNullLogger())
		require.NoError(t, err)
		m := NewManager(Config{Dir: dir, VerifyInterval: -1, LoadTime: time.Hour}, device, hclog.NewNullLogger())
		old, _, err := m.Load(t.Context(), "small", Options{}, nil)
		require.NoError(t, err)
		_, release, err := m.Acquire("small")
		require.NoError(t, err)
		old.drain()
		begin := time.Now()
		_, _, err = m.Load(t.Context(), "small", Options{}, nil) // waits for a request that does not end
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "small")
		require.Equal(t, time.Hour, time.Since(begin))

		require.NoError(t, m.loadSlot.Acquire(t.Context(), 1))
		_, _, err = m.Load(t.Context(), "family/other", Options{}, nil) // waits for its turn
		require.ErrorIs(t, err, context.DeadlineExceeded)
		m.loadSlot.Release(1)
		release()
		_, _, err = m.Load(t.Context(), "small", Options{}, nil)
		require.NoError(t, err)
		require.NoError(t, m.Close())
		require.NoError(t, device.Close())
	})
}

func TestAcquireReadsAnUnloadedFileOnce(t *testing.T) {
	// The file of a model that is not loaded is read once for many requests.
	m, _ := manager(t, 1<<30)
	path := filepath.Join(m.cfg.Dir, "small"+extension)
	info, err := os.Stat(path)
	require.NoError(t, err)
	_, _, err = m.Acquire("small")
	require.ErrorIs(t, err, ErrNotLoaded)
	_, _, first := m.Acquire("random")
	require.ErrorIs(t, first, gguf.ErrFormat)
	for range 3 {
		_, _, err = m.Acquire("random")
		require.Same(t, first, err, "what the first look found")
	}
	time.Sleep(20 * time.Millisecond) // file systems count time in ticks
	require.NoError(t, os.WriteFile(path, make([]byte, info.Size()), 0o644))
	require.NoError(t, os.Chtimes(path, info.ModTime(), info.ModTime()))
	_, _, err = m.Acquire("small")
	require.ErrorIs(t, err, gguf.ErrFormat, "it has changed, although size and time of modification are as they were")
	require.NoError(t, os.Remove(path))
	_, _, err = m.Acquire("small")
	require.ErrorIs(t, err, ErrNotFound)
	for name, want := range map[string]error{
		"nobody": ErrNotFound, "link": ErrNotFound, "directory": gguf.ErrFormat, "truncated": gguf.ErrFormat, "../x": ErrName,
	} {
		_, _, err = m.Acquire(name)
		require.ErrorIs(t, err, want, name)
	}
}
