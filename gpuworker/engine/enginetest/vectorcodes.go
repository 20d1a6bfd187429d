package enginetest

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference/vq"
)

// CheckEncoding encodes rows on the device, all at once and in pieces, and decodes the codes. It
// returns an error for the first difference from the reference.
func CheckEncoding(dev engine.Vectors, desc engine.CodebookDesc, codewords []byte, e engine.Encoding, piece int) (err error) {
	book, err := dev.NewCodebook(desc, codewords)
	if err != nil {
		return fmt.Errorf("new codebook: %w", err)
	}
	defer func() {
		if bad := book.Close(); err == nil {
			err = bad
		}
	}()
	plain, err := vq.NewCodebook(desc, codewords)
	if err != nil {
		return err
	}
	want, err := plain.Encode(e)
	if err != nil {
		return err
	}
	rows := e.Rows
	for _, size := range []int{len(rows), piece * desc.Dimension * e.Element.Size()} {
		var got engine.Codes
		for at := 0; at < len(rows) || at == 0; at += max(size, 1) {
			e.Rows = rows[at:min(at+size, len(rows))]
			some, err := book.Encode(e)
			if err != nil {
				return fmt.Errorf("encode: %w", err)
			}
			got.Codes, got.Distances = append(got.Codes, some.Codes...), append(got.Distances, some.Distances...)
		}
		if !bytes.Equal(got.Codes, want.Codes) {
			return fmt.Errorf("codes differ, first in byte %d", firstDifference(got.Codes, want.Codes))
		}
		if !slices.EqualFunc(got.Distances, want.Distances, func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }) {
			return fmt.Errorf("distances differ, first %d", firstDifference(got.Distances, want.Distances))
		}
	}
	first := firstCodes(want.Codes, desc, e.Neighbours)
	decoded, err := book.Decode(first)
	if err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	if gathered, err := plain.Decode(first); err != nil || !bytes.Equal(decoded, gathered) {
		return fmt.Errorf("decoded rows differ, first in byte %d (%w)", firstDifference(decoded, gathered), err)
	}
	return nil
}

// firstCodes returns the codes of the nearest neighbours only.
func firstCodes(codes []byte, desc engine.CodebookDesc, neighbours int) []byte {
	var out []byte
	each := desc.CodeSize() * desc.Subspaces
	for i := 0; i < len(codes); i += each * neighbours {
		out = append(out, codes[i:i+each]...)
	}
	return out
}

func testEncoding(t *testing.T, dev engine.Vectors, opts VectorOptions) {
	for seed := range uint64(opts.Jobs) {
		r := rand.New(rand.NewPCG(seed, 99))
		job := RandomJob(seed)
		desc, s := job.Config.Codebook, rowShapes[r.IntN(len(rowShapes))]
		codewords := rowsOf(s, r, desc.Type, desc.Type, desc.Codewords, desc.Dimension)
		count := []int{0, 1, 2, 63, 500}[r.IntN(5)]
		e := engine.Encoding{
			Element: job.Config.Element, Rows: rowsOf(s, r, job.Config.Element, desc.Type, count, desc.Dimension), Neighbours: 1,
			Distances: r.IntN(2) == 0,
		}
		if desc.Kind == engine.Flat {
			e.Neighbours = 1 + r.IntN(min(desc.Codewords, engine.MaxNeighbours))
		}
		require.NoError(t, CheckEncoding(dev, desc, codewords, e, 1+r.IntN(7)), "seed %d: %d %s rows, %d neighbours, %+v", seed, count, s.name, e.Neighbours, desc)
	}
}

// testWideCodes has codes of two bytes, and every tie goes to the lower one: codeword c + 300 is
// codeword c.
func testWideCodes(t *testing.T, dev engine.Vectors, _ VectorOptions) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, k := range []int{255, 256, 257, 600, 4096} {
		desc := engine.CodebookDesc{Dimension: 3, Codewords: k, Subspaces: 1, Type: engine.VectorF16}
		some := rowsOf(rowShapes[0], r, desc.Type, desc.Type, min(k, 300), 3)
		codewords := bytes.Repeat(some, k/300+1)[:desc.Bytes()]
		rows := rowsOf(rowShapes[0], r, engine.VectorF32, desc.Type, 200, 3)
		e := engine.Encoding{Element: engine.VectorF32, Rows: rows, Neighbours: 5, Distances: true}
		require.NoError(t, CheckEncoding(dev, desc, codewords, e, 13), "%d codewords", k)
	}
}

// testResidentCodebook checks that the digest is of the resident bytes.
func testResidentCodebook(t *testing.T, dev engine.Vectors, _ VectorOptions) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, of := range []engine.Element{engine.VectorF32, engine.VectorF16, engine.VectorBF16} {
		desc := engine.CodebookDesc{Kind: engine.Product, Dimension: 6, Codewords: 37, Subspaces: 2, Type: of}
		codewords := rowsOf(rowShapes[0], r, of, of, desc.Codewords, desc.Dimension)
		plain, err := vq.NewCodebook(desc, codewords)
		require.NoError(t, err)
		book, err := dev.NewCodebook(desc, codewords)
		require.NoError(t, err)
		digest, err := book.Digest()
		require.NoError(t, err)
		require.Equal(t, plain.Digest(), digest)
		flipper, ok := book.(engine.CodebookBitFlipper)
		require.True(t, ok, "a test cannot ask the codebook for a fault")
		for _, bit := range []uint64{0, 8*desc.Bytes() - 1, 1001} {
			require.NoError(t, flipper.FlipBit(bit))
			changed, err := book.Digest()
			require.NoError(t, err)
			require.NotEqual(t, digest, changed, "bit %d", bit)
			require.NoError(t, flipper.FlipBit(bit))
		}
		require.ErrorIs(t, flipper.FlipBit(8*desc.Bytes()), engine.ErrInvalid)
		again, err := book.Digest()
		require.NoError(t, err)
		require.Equal(t, digest, again)
		require.NoError(t, book.Close())
		_, err = book.Digest()
		require.ErrorIs(t, err, engine.ErrPrecondition)
		require.ErrorIs(t, book.Close(), engine.ErrPrecondition)
	}
}
