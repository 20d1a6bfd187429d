package enginetest

import (
	"bytes"
	"errors"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"lukechampine.com/blake3"

	"github.com/millrace/millrace/gpuworker/engine"
)

func testDevice(t *testing.T, opener func(*testing.T) engine.Device, _ Options) {
	t.Run("describes itself", func(t *testing.T) {
		info, err := open(t, opener).Info()
		require.NoError(t, err)
		for what, s := range map[string]string{"kind": info.Kind, "name": info.Name, "path": info.Path, "numerics": info.Numerics, "build": info.Build} {
			require.NotEmpty(t, s, what)
		}
		require.Positive(t, info.SMCount)
		require.Positive(t, info.BytesTotal)
		require.LessOrEqual(t, info.BytesFree, info.BytesTotal)
	})
	t.Run("counts bytes by purpose", func(t *testing.T) {
		dev := open(t, opener)
		before, err := dev.Info()
		require.NoError(t, err)
		var held []engine.Buffer
		for p := range engine.PurposeCount {
			b, err := dev.Alloc(1<<20*uint64(p+1), p)
			require.NoError(t, err)
			held = append(held, b)
		}
		info, err := dev.Info()
		require.NoError(t, err)
		for p, b := range held {
			require.GreaterOrEqual(t, info.BytesUsed[p], b.Size())
			require.Less(t, info.BytesUsed[p], b.Size()+64<<10, "padding stays small")
		}
		require.EqualValues(t, len(held), info.LiveBuffers)
		require.LessOrEqual(t, info.BytesFree, before.BytesFree-10<<20)
		for _, b := range held {
			require.NoError(t, b.Free())
		}
	})
	t.Run("refuses what is wrong", func(t *testing.T) {
		dev := open(t, opener)
		_, err := dev.Alloc(0, engine.Staging)
		require.ErrorIs(t, err, engine.ErrInvalid)
		_, err = dev.Alloc(1, engine.PurposeCount)
		require.ErrorIs(t, err, engine.ErrInvalid)
		_, err = dev.Alloc(1, -1)
		require.ErrorIs(t, err, engine.ErrInvalid)
		for _, size := range []uint64{1 << 50, math.MaxUint64, math.MaxUint64 - 63} {
			_, err = dev.Alloc(size, engine.Weights)
			require.ErrorIs(t, err, engine.ErrOutOfMemory)
		}
		b, err := dev.Alloc(1, engine.Staging)
		require.NoError(t, err, "the device stays usable")
		require.NoError(t, b.Free())
	})
	t.Run("does not close while something lives", func(t *testing.T) {
		dev := opener(t)
		b, err := dev.Alloc(100, engine.Staging)
		require.NoError(t, err)
		require.ErrorIs(t, dev.Close(), engine.ErrPrecondition)
		_, err = b.WriteAt([]byte{1}, 0)
		require.NoError(t, err, "a refused close changes nothing")
		require.NoError(t, b.Free())
		m, err := dev.NewModel(Small().Model())
		require.NoError(t, err)
		require.ErrorIs(t, dev.Close(), engine.ErrPrecondition)
		require.NoError(t, m.Close())
		require.NoError(t, dev.Close())
		require.ErrorIs(t, dev.Close(), engine.ErrPrecondition, "a second close")
		_, err = dev.Info()
		require.ErrorIs(t, err, engine.ErrPrecondition)
		_, err = dev.Alloc(1, engine.Staging)
		require.ErrorIs(t, err, engine.ErrPrecondition)
	})
	t.Run("has its memory back after ten thousand buffers", func(t *testing.T) {
		dev := open(t, opener)
		before, err := dev.Info()
		require.NoError(t, err)
		var held []engine.Buffer
		rng := generator(1)
		for i := range 10_000 {
			b, err := dev.Alloc(1+rng.Uint64N(64<<10), engine.Purpose(i%int(engine.PurposeCount)))
			require.NoError(t, err)
			if held = append(held, b); len(held) > 20 {
				k := rng.IntN(len(held))
				require.NoError(t, held[k].Free())
				held = append(held[:k], held[k+1:]...)
			}
		}
		for _, b := range held {
			require.NoError(t, b.Free())
		}
		info, err := dev.Info()
		require.NoError(t, err)
		require.GreaterOrEqual(t, info.BytesFree+info.BytesPooled, before.BytesFree)
		require.Equal(t, before.BytesUsed, info.BytesUsed)
	})
}

// pattern returns n bytes that do not repeat within 64 KiB.
func pattern(n int, seed byte) []byte {
	p := make([]byte, n)
	const period = 1 << 16
	for i := range p[:min(n, period)] {
		p[i] = byte(i*7) ^ byte(i>>8) ^ seed
	}
	for done := period; done < n; done *= 2 {
		copy(p[done:], p[:done])
	}
	return p
}

func testBuffer(t *testing.T, opener func(*testing.T) engine.Device, _ Options) {
	t.Run("holds what was written", func(t *testing.T) {
		dev := open(t, opener)
		for _, size := range []int{1, 2, 63, 64, 65, 1023, 4096, 100_001, 1 << 20, 64 << 20} {
			b, err := dev.Alloc(uint64(size), engine.Staging)
			require.NoError(t, err)
			require.EqualValues(t, size, b.Size())
			got := pattern(size, 99)
			_, err = b.ReadAt(got, 0)
			require.NoError(t, err)
			require.True(t, bytes.Equal(make([]byte, size), got), "new bytes are zero")
			want := pattern(size, 3)
			n, err := b.WriteAt(want, 0)
			require.NoError(t, err)
			require.Equal(t, size, n)
			n, err = b.ReadAt(got, 0)
			require.NoError(t, err)
			require.Equal(t, size, n)
			require.True(t, bytes.Equal(want, got))
			digest, err := b.Digest(0, uint64(size))
			require.NoError(t, err)
			require.Equal(t, engine.Digest(blake3.Sum256(want)), digest)
			require.NoError(t, b.Free())
		}
		b, err := dev.Alloc(1000, engine.Staging)
		require.NoError(t, err)
		defer func() { require.NoError(t, b.Free()) }()
		got := make([]byte, 1000)
		_, err = b.ReadAt(got, 0)
		require.NoError(t, err)
		require.True(t, bytes.Equal(make([]byte, 1000), got), "reused bytes are zero again")
	})
	t.Run("fills, copies and digests parts", func(t *testing.T) {
		dev := open(t, opener)
		a, err := upload(dev, pattern(5000, 1), engine.Staging)
		require.NoError(t, err)
		b, err := dev.Alloc(3000, engine.Staging)
		require.NoError(t, err)
		want := pattern(5000, 1)
		require.NoError(t, a.Fill(0xab, 17, 100))
		for i := 17; i < 117; i++ {
			want[i] = 0xab
		}
		require.NoError(t, a.CopyTo(b, 7, 11, 2993))
		require.NoError(t, a.CopyTo(a, 100, 50, 1000), "an overlap that moves up")
		copy(want[100:1100], bytes.Clone(want[50:1050]))
		require.NoError(t, a.CopyTo(a, 2000, 2100, 1000), "an overlap that moves down")
		copy(want[2000:3000], bytes.Clone(want[2100:3100]))
		require.NoError(t, a.CopyTo(a, 9, 9, 100), "onto itself")
		got := make([]byte, 5000)
		_, err = a.ReadAt(got, 0)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got))
		got = got[:10]
		_, err = b.ReadAt(got, 0)
		require.NoError(t, err)
		first := pattern(5000, 1)
		for i := 17; i < 117; i++ {
			first[i] = 0xab
		}
		require.Equal(t, append(make([]byte, 7), first[11:14]...), got)
		digest, err := a.Digest(123, 4567)
		require.NoError(t, err)
		require.Equal(t, engine.Digest(blake3.Sum256(want[123:123+4567])), digest)
		digest, err = a.Digest(5000, 0)
		require.NoError(t, err)
		require.Equal(t, engine.Digest(blake3.Sum256(nil)), digest, "nothing has the digest of nothing")
		require.NoError(t, a.Free())
		require.NoError(t, b.Free())
	})
	t.Run("refuses every range outside", func(t *testing.T) {
		dev := open(t, opener)
		b, err := dev.Alloc(100, engine.Staging)
		require.NoError(t, err)
		small, err := dev.Alloc(10, engine.Staging)
		require.NoError(t, err)
		three := []byte{1, 2, 3}
		for _, off := range []int64{-1, 98, 100, 101, math.MaxInt64, math.MinInt64} {
			_, err := b.WriteAt(three, off)
			require.ErrorIs(t, err, engine.ErrInvalid, off)
			_, err = b.ReadAt(three, off)
			require.ErrorIs(t, err, engine.ErrInvalid, off)
		}
		for _, r := range [][2]uint64{{98, 3}, {101, 0}, {0, 101}, {1, math.MaxUint64}, {math.MaxUint64, 1}, {math.MaxUint64, math.MaxUint64}} {
			require.ErrorIs(t, b.Fill(9, r[0], r[1]), engine.ErrInvalid, r)
			_, err := b.Digest(r[0], r[1])
			require.ErrorIs(t, err, engine.ErrInvalid, r)
			require.ErrorIs(t, b.CopyTo(b, 0, r[0], r[1]), engine.ErrInvalid, r)
			require.ErrorIs(t, b.CopyTo(b, r[0], 0, r[1]), engine.ErrInvalid, r)
		}
		require.ErrorIs(t, b.CopyTo(small, 0, 0, 11), engine.ErrInvalid)
		require.ErrorIs(t, b.CopyTo(nil, 0, 0, 1), engine.ErrInvalid)
		_, err = b.WriteAt(nil, 100)
		require.NoError(t, err, "nothing at the end is inside")
		got := make([]byte, 100)
		_, err = b.ReadAt(got, 0)
		require.NoError(t, err)
		require.Equal(t, make([]byte, 100), got, "refused calls wrote nothing")
		require.NoError(t, b.Free())
		require.NoError(t, small.Free())
	})
	t.Run("is an error after free", func(t *testing.T) {
		dev := open(t, opener)
		b, err := dev.Alloc(100, engine.Staging)
		require.NoError(t, err)
		other, err := dev.Alloc(100, engine.Staging)
		require.NoError(t, err)
		require.NoError(t, b.Free())
		require.ErrorIs(t, b.Free(), engine.ErrPrecondition)
		_, err = b.WriteAt([]byte{1}, 0)
		require.ErrorIs(t, err, engine.ErrPrecondition)
		_, err = b.ReadAt([]byte{1}, 0)
		require.ErrorIs(t, err, engine.ErrPrecondition)
		require.ErrorIs(t, b.Fill(1, 0, 1), engine.ErrPrecondition)
		_, err = b.Digest(0, 1)
		require.ErrorIs(t, err, engine.ErrPrecondition)
		require.ErrorIs(t, b.CopyTo(other, 0, 0, 1), engine.ErrPrecondition)
		require.ErrorIs(t, other.CopyTo(b, 0, 0, 1), engine.ErrPrecondition)
		require.NoError(t, other.Free())
	})
	t.Run("is freed once, however many try at once", func(t *testing.T) {
		dev := open(t, opener)
		for range 50 {
			b, err := dev.Alloc(4096, engine.Staging)
			require.NoError(t, err)
			var wg sync.WaitGroup
			var mu sync.Mutex
			freed := 0
			for range 8 {
				wg.Go(func() {
					_, _ = b.WriteAt([]byte{1, 2, 3}, 0)
					if b.Free() == nil {
						mu.Lock()
						freed++
						mu.Unlock()
					}
					if _, err := b.ReadAt(make([]byte, 3), 0); !errors.Is(err, engine.ErrPrecondition) {
						t.Errorf("read after free: %v", err)
					}
				})
			}
			wg.Wait()
			require.Equal(t, 1, freed)
		}
	})
	t.Run("keeps concurrent copies apart", func(t *testing.T) {
		dev := open(t, opener)
		const parts, size = 8, 200_003
		a, err := upload(dev, pattern(parts*size, 5), engine.Staging)
		require.NoError(t, err)
		b, err := dev.Alloc(parts*size, engine.Staging)
		require.NoError(t, err)
		var wg sync.WaitGroup
		for i := range uint64(parts) {
			wg.Go(func() {
				for range 5 {
					if err := a.CopyTo(b, (parts-1-i)*size, i*size, size); err != nil {
						t.Errorf("copy: %v", err)
					}
					if err := b.CopyTo(b, (parts-1-i)*size, (parts-1-i)*size, size); err != nil {
						t.Errorf("copy: %v", err)
					}
				}
			})
		}
		wg.Wait()
		want, got := pattern(parts*size, 5), make([]byte, size)
		for i := range parts {
			_, err := b.ReadAt(got, int64((parts-1-i)*size))
			require.NoError(t, err)
			require.True(t, bytes.Equal(want[i*size:(i+1)*size], got))
		}
		require.NoError(t, a.Free())
		require.NoError(t, b.Free())
	})
}
