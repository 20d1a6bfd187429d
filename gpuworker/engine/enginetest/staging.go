package enginetest

import (
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// staged returns staged memory of the device, or skips the test if any memory is as fast.
func staged(t *testing.T, dev engine.Device, size int) (memory engine.Staged) {
	t.Helper()
	stager, ok := dev.(engine.Stager)
	err := engine.ErrUnsupported
	if ok {
		memory, err = stager.Stage(size)
	}
	if errors.Is(err, engine.ErrUnsupported) {
		t.Skip("any memory is as good to this device")
	}
	require.NoError(t, err)
	require.Len(t, memory.Bytes(), size)
	return memory
}

func testStaging(t *testing.T, opener func(*testing.T) engine.Device, _ Options) {
	t.Run("gives memory that buffers are written from", func(t *testing.T) {
		dev := open(t, opener)
		const size, parts = 1 << 20, 3
		b, err := dev.Alloc(parts*size, engine.Staging)
		require.NoError(t, err)
		defer func() { require.NoError(t, b.Free()) }()
		var pieces []engine.Staged
		for i := range parts {
			memory := staged(t, dev, size)
			copy(memory.Bytes(), pattern(size, byte(i)))
			n, err := b.WriteAt(memory.Bytes(), int64(i)*size)
			require.NoError(t, err)
			require.Equal(t, size, n)
			pieces = append(pieces, memory)
		}
		got := make([]byte, size)
		for i, memory := range pieces {
			require.NoError(t, memory.Free())
			_, err := b.ReadAt(got, int64(i)*size)
			require.NoError(t, err)
			require.Equal(t, pattern(size, byte(i)), got)
		}
	})
	t.Run("reads into staged memory while it is written from elsewhere", func(t *testing.T) {
		dev := open(t, opener)
		const size = 3 << 20
		memory := staged(t, dev, 2*size)
		defer func() { require.NoError(t, memory.Free()) }()
		b, err := dev.Alloc(size, engine.Staging)
		require.NoError(t, err)
		defer func() { require.NoError(t, b.Free()) }()
		from, to := memory.Bytes()[:size], memory.Bytes()[size:]
		copy(from, pattern(size, 9))
		_, err = b.WriteAt(from, 0)
		require.NoError(t, err)
		other, err := dev.Alloc(size, engine.Staging)
		require.NoError(t, err)
		defer func() { require.NoError(t, other.Free()) }()
		var wg sync.WaitGroup
		wg.Go(func() {
			for range 20 {
				if _, err := other.WriteAt(from, 0); err != nil {
					t.Error(err)
				}
			}
		})
		for range 20 {
			clear(to)
			n, err := b.ReadAt(to, 0)
			require.NoError(t, err)
			require.Equal(t, size, n)
			require.Equal(t, pattern(size, 9), to)
		}
		wg.Wait()
		n, err := b.ReadAt(to[1:4], size-3)
		require.NoError(t, err)
		require.Equal(t, 3, n)
		require.Equal(t, pattern(size, 9)[size-3:], to[1:4])
	})
	t.Run("does not close over staged memory, which is freed once", func(t *testing.T) {
		dev := opener(t)
		defer func() { require.NoError(t, dev.Close()) }()
		memory := staged(t, dev, 1<<20)
		require.ErrorIs(t, dev.Close(), engine.ErrPrecondition)
		b, err := dev.Alloc(3, engine.Staging)
		require.NoError(t, err, "a refused close changes nothing")
		_, err = b.WriteAt(memory.Bytes()[1<<20-3:], 0)
		require.NoError(t, err)
		require.NoError(t, b.Free())
		require.NoError(t, memory.Free())
		require.Nil(t, memory.Bytes())
		other := staged(t, dev, 1<<20)
		require.ErrorIs(t, memory.Free(), engine.ErrPrecondition)
		require.ErrorIs(t, dev.Close(), engine.ErrPrecondition, "a second free frees nothing")
		require.NoError(t, other.Free())
	})
	t.Run("frees staged memory beside closes that are refused, and writes from it", func(t *testing.T) {
		dev := opener(t)
		memory := staged(t, dev, 1<<20)
		b, err := dev.Alloc(1<<20, engine.Staging)
		require.NoError(t, err)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 50 {
					if err := dev.Close(); !errors.Is(err, engine.ErrPrecondition) {
						t.Errorf("a close over a buffer: %v", err)
					}
				}
			})
			wg.Go(func() {
				for range 50 {
					bytes := memory.Bytes()
					if bytes == nil {
						return
					}
					// Its error is not checked: a running close refuses it, too.
					_, _ = b.WriteAt(bytes, 0)
				}
			})
		}
		require.NoError(t, memory.Free(), "once is enough")
		wg.Wait()
		require.NoError(t, b.Free())
		require.NoError(t, dev.Close())
	})
	t.Run("refuses to stage nothing", func(t *testing.T) {
		dev := open(t, opener)
		require.NoError(t, staged(t, dev, 1).Free())
		for _, size := range []int{0, -1} {
			_, err := dev.(engine.Stager).Stage(size)
			require.ErrorIs(t, err, engine.ErrInvalid)
		}
	})
}
