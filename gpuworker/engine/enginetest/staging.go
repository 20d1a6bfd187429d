package enginetest

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// staged is memory that the device has given, or a skipped test where any memory is as good to it.
func staged(t *testing.T, dev engine.Device, size int) (memory []byte, free func() error) {
	t.Helper()
	stager, ok := dev.(engine.Stager)
	err := engine.ErrUnsupported
	if ok {
		memory, free, err = stager.Stage(size)
	}
	if errors.Is(err, engine.ErrUnsupported) {
		t.Skip("any memory is as good to this device")
	}
	require.NoError(t, err)
	require.Len(t, memory, size)
	return memory, free
}

func testStaging(t *testing.T, opener func(*testing.T) engine.Device, _ Options) {
	t.Run("gives memory that buffers are written from", func(t *testing.T) {
		dev := open(t, opener)
		const size, parts = 1 << 20, 3
		b, err := dev.Alloc(parts*size, engine.Staging)
		require.NoError(t, err)
		defer func() { require.NoError(t, b.Free()) }()
		var frees []func() error
		for i := range parts {
			memory, free := staged(t, dev, size)
			copy(memory, pattern(size, byte(i)))
			n, err := b.WriteAt(memory, int64(i)*size)
			require.NoError(t, err)
			require.Equal(t, size, n)
			frees = append(frees, free)
		}
		got := make([]byte, size)
		for i, free := range frees {
			require.NoError(t, free())
			_, err := b.ReadAt(got, int64(i)*size)
			require.NoError(t, err)
			require.Equal(t, pattern(size, byte(i)), got)
		}
	})
	t.Run("does not close over staged memory, which is freed once", func(t *testing.T) {
		dev := opener(t)
		defer func() { require.NoError(t, dev.Close()) }()
		memory, free := staged(t, dev, 1<<20)
		require.ErrorIs(t, dev.Close(), engine.ErrPrecondition)
		b, err := dev.Alloc(3, engine.Staging)
		require.NoError(t, err, "a refused close changes nothing")
		_, err = b.WriteAt(memory[len(memory)-3:], 0)
		require.NoError(t, err)
		require.NoError(t, b.Free())
		require.NoError(t, free())
		_, other := staged(t, dev, 1<<20)
		require.ErrorIs(t, free(), engine.ErrPrecondition)
		require.ErrorIs(t, dev.Close(), engine.ErrPrecondition, "a second free frees nothing")
		require.NoError(t, other())
	})
	t.Run("refuses to stage nothing", func(t *testing.T) {
		dev := open(t, opener)
		_, free := staged(t, dev, 1)
		require.NoError(t, free())
		for _, size := range []int{0, -1} {
			_, _, err := dev.(engine.Stager).Stage(size)
			require.ErrorIs(t, err, engine.ErrInvalid)
		}
	})
}
