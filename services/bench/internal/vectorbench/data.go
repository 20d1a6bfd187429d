package vectorbench

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference/vq"
	"github.com/millrace/millrace/internal/vectorfile"
)

// Data says what rows are drawn.
type Data struct {
	Rows, Dimension int
	Seed            uint64
	// Clusters is how many points rows lie around, at a tenth of the points' own spread; 0: rows are normally distributed.
	Clusters int
}

const (
	drawnRows = 4096 // by one task, from a generator of its own: the same rows on any number of threads
	nearness  = 0.1
)

// draw gives rows from first on; calls are for whole tasks.
func (d Data) draw(first, count int) []float64 {
	rng := rand.New(rand.NewPCG(d.Seed, uint64(first)))
	out := make([]float64, count*d.Dimension)
	for i := range out {
		out[i] = rng.NormFloat64()
	}
	if d.Clusters == 0 {
		return out
	}
	for i := range count {
		// A point is drawn anew from its number, so that nothing is kept.
		point := rand.New(rand.NewPCG(d.Seed^0x9e3779b97f4a7c15, rng.Uint64N(uint64(d.Clusters))))
		row := out[i*d.Dimension : (i+1)*d.Dimension]
		for j := range row {
			row[j] = point.NormFloat64() + nearness*row[j]
		}
	}
	return out
}

// Bytes are the rows as little-endian elements of a type.
func (d Data) Bytes(of engine.Element) []byte {
	out := make([]byte, d.Rows*d.Dimension*of.Size())
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for first := 0; first < d.Rows; first += drawnRows {
		group.Go(func() error {
			count := min(drawnRows, d.Rows-first)
			copy(out[first*d.Dimension*of.Size():], encoded(of, d.draw(first, count)))
			return nil
		})
	}
	_ = group.Wait() // no task fails
	return out
}

// encoded rounds values to a type.
func encoded(of engine.Element, values []float64) []byte {
	if of == engine.VectorF32 { // as below, and much faster
		out := make([]byte, 0, 4*len(values))
		for _, v := range values {
			out = binary.LittleEndian.AppendUint32(out, math.Float32bits(float32(v)))
		}
		return out
	}
	for i, v := range values {
		values[i] = vq.Round(of, v)
	}
	return vq.Encode(of, values)
}

// Write writes the rows as .fvecs: 32-bit floats, which other programs read too.
func (d Data) Write(ctx context.Context, w io.Writer) error {
	if d.Rows < 1 || d.Rows > maxRows {
		return fmt.Errorf("--rows %d: want 1 to %d", d.Rows, maxRows)
	}
	rows, err := vectorfile.NewVecsWriter(w, d.Dimension)
	if err != nil {
		return err
	}
	for first := 0; first < d.Rows; first += drawnRows {
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := rows.Write(encoded(engine.VectorF32, d.draw(first, min(drawnRows, d.Rows-first)))); err != nil {
			return err
		}
	}
	return rows.Close()
}

// codewordsOf gives the bytes of a codebook of values drawn like the rows, but not of theirs.
func codewordsOf(desc engine.CodebookDesc, seed uint64) []byte {
	return Data{Rows: desc.Codewords, Dimension: desc.Dimension, Seed: ^seed}.Bytes(desc.Type)
}

// sampled picks up to n numbers below rows, evenly.
func sampled(rows, n int) []int {
	var out []int
	for i := range min(rows, n) {
		out = append(out, i*rows/min(rows, n))
	}
	return out
}
