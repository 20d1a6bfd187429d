package enginetest

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Books is the ledger of a device, which a failed call must not change.
type Books struct {
	Used         [engine.PurposeCount]uint64
	Free         uint64
	LiveBuffers  uint64
	WithoutOwner uint64 // frees that were refused
}

// BooksOf reads the ledger of a device.
func BooksOf(t *testing.T, dev engine.Device) Books {
	t.Helper()
	info, err := dev.Info()
	require.NoError(t, err)
	return Books{Used: info.BytesUsed, Free: info.BytesFree, LiveBuffers: info.LiveBuffers, WithoutOwner: info.FailedFrees}
}

// refuser returns the device's Refuser, or skips the test.
func refuser(t *testing.T, dev engine.Device) func(what engine.Refusal, skip int, count uint64) {
	t.Helper()
	r, ok := dev.(engine.Refuser)
	if !ok || errors.Is(r.Refuse(engine.RefuseAlloc, 0, 0), engine.ErrUnsupported) {
		t.Skip("this device refuses nothing on request")
	}
	return func(what engine.Refusal, skip int, count uint64) {
		t.Helper()
		require.NoError(t, r.Refuse(what, skip, count))
	}
}

func testRefusedMemory(t *testing.T, opener func(*testing.T) engine.Device, opts Options) {
	t.Run("of memory end one call and change nothing", func(t *testing.T) {
		dev := open(t, opener)
		refuse := refuser(t, dev)
		kept, err := upload(dev, pattern(100_000, 1), engine.KV)
		require.NoError(t, err)
		before := BooksOf(t, dev)
		for _, size := range []uint64{1, 100_000, 64 << 20} {
			refuse(engine.RefuseAlloc, 0, 1)
			_, err := dev.Alloc(size, engine.Weights)
			require.ErrorIs(t, err, engine.ErrOutOfMemory)
			require.Equal(t, before, BooksOf(t, dev))
			b, err := dev.Alloc(size, engine.Weights)
			require.NoError(t, err, "the next call succeeds")
			require.NoError(t, b.Free())
			require.Equal(t, before, BooksOf(t, dev))
		}
		refuse(engine.RefuseAlloc, 2, 1)
		for i := range 4 {
			b, err := dev.Alloc(1000, engine.Staging)
			require.Equal(t, i == 2, errors.Is(err, engine.ErrOutOfMemory), i)
			if err == nil {
				require.NoError(t, b.Free())
			}
		}
		require.NoError(t, kept.Free())
	})
	t.Run("of a free leave the buffer alive, and a second one succeeds", func(t *testing.T) {
		dev := open(t, opener)
		refuse := refuser(t, dev)
		for _, size := range []int{1, 100_000, 5 << 20} {
			b, err := upload(dev, pattern(size, 7), engine.Weights)
			require.NoError(t, err)
			want := BooksOf(t, dev)
			for range 2 {
				refuse(engine.RefuseFree, 0, 1)
				require.ErrorIs(t, b.Free(), engine.ErrDevice)
				want.WithoutOwner++
				require.Equal(t, want, BooksOf(t, dev))
				got := make([]byte, size)
				_, err = b.ReadAt(got, 0)
				require.NoError(t, err)
				require.Equal(t, pattern(size, 7), got)
			}
			require.ErrorIs(t, dev.Close(), engine.ErrPrecondition)
			require.NoError(t, b.Free())
			require.ErrorIs(t, b.Free(), engine.ErrPrecondition)
		}
	})
	t.Run("of a bind consume the buffer and give its bytes back", func(t *testing.T) {
		dev := open(t, opener)
		refuse := refuser(t, dev)
		weights := Random(Small().Model(), all(engine.F32), 3)
		m, err := dev.NewModel(weights.Desc)
		require.NoError(t, err)
		before := BooksOf(t, dev)
		b, err := upload(dev, weights.Tensors[0].Bytes, engine.Staging)
		require.NoError(t, err)
		refuse(engine.RefuseAlloc, 0, 1)
		require.ErrorIs(t, m.Bind(weights.Tensors[0].TensorDesc, b), engine.ErrOutOfMemory)
		require.ErrorIs(t, b.Free(), engine.ErrPrecondition, "it was consumed")
		require.Equal(t, before, BooksOf(t, dev))
		for _, tensor := range weights.Tensors {
			require.NoError(t, bind(dev, m, tensor))
		}
		require.NoError(t, m.Seal())
		require.NoError(t, m.Close())
	})
	t.Run("of a runner leave nothing", func(t *testing.T) {
		dev := open(t, opener)
		refuse := refuser(t, dev)
		m := Load(t, dev, Random(Small().Model(), all(engine.F32), 3))
		before := BooksOf(t, dev)
		refused := 0
		for skip := range 8 { // more than a runner takes
			refuse(engine.RefuseAlloc, skip, 1)
			r, err := m.NewRunner(Sizes())
			refuse(engine.RefuseAlloc, 0, 0)
			if err == nil {
				require.NoError(t, r.Close())
			} else {
				require.ErrorIs(t, err, engine.ErrOutOfMemory)
				refused++
			}
			require.Equal(t, before, BooksOf(t, dev))
		}
		require.Positive(t, refused)
		NewRunner(t, m, Sizes())
	})
	t.Run("of what a model held stay counted until the device takes it", func(t *testing.T) {
		dev := open(t, opener)
		refuse := refuser(t, dev)
		if info, err := dev.Info(); err != nil || info.Kind == "sim" {
			t.Skip("nothing is refused to a model that holds nothing")
		} else if info.Devices > 1 {
			t.Skipf("a buffer makes the first of %d GPUs offer its memory again, and no other", info.Devices)
		}
		weights := Random(Small().Model(), all(engine.F32), 3)
		m, err := dev.NewModel(weights.Desc)
		require.NoError(t, err)
		for _, tensor := range weights.Tensors {
			require.NoError(t, bind(dev, m, tensor))
		}
		with := BooksOf(t, dev)
		refuse(engine.RefuseFree, 0, 3)
		require.NoError(t, m.Close(), "there is nobody to fail to")
		after := BooksOf(t, dev)
		require.Positive(t, after.Used[engine.Weights])
		require.Less(t, after.Used[engine.Weights], with.Used[engine.Weights])
		require.EqualValues(t, 3, after.WithoutOwner)
		info, err := dev.Info()
		require.NoError(t, err)
		b, err := dev.Alloc(info.BytesTotal, engine.Staging) // which needs all there is, and offers them again
		require.NoError(t, err)
		require.NoError(t, b.Free())
	})
}
