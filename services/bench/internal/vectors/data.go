package vectors

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

// Data describes the rows that are drawn.
type Data struct {
	Rows, Dimension int
	Seed            uint64
	// Clusters is the number of points that rows lie around, at a tenth of the points' own spread;
	// 0: rows are normally distributed.
	Clusters int
}

const (
	drawnRows = 4096 // by one task with its own generator, so that rows do not depend on the number of threads
	nearness  = 0.1
)

// draw returns rows from first on. first must be a multiple of drawnRows.
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
		// Each point is drawn from its number again, so that none need be stored.
		point := rand.New(rand.NewPCG(d.Seed^0x9e3779b97f4a7c15, rng.Uint64N(uint64(d.Clusters))))
		row := out[i*d.Dimension : (i+1)*d.Dimension]
		for j := range row {
			row[j] = point.NormFloat64() + nearness*row[j]
		}
	}
	return out
}

// Bytes returns the rows as little-endian elements of a type.
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
	if of == engine.VectorF32 { // equal to the general case below, and much faster
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

// Write writes the rows as .fvecs, which other programs read.
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

// codewordsOf returns a codebook of values that are drawn like the rows, with another seed.
func codewordsOf(desc engine.CodebookDesc, seed uint64) []byte {
	return Data{Rows: desc.Codewords, Dimension: desc.Dimension, Seed: ^seed}.Bytes(desc.Type)
}

// sampled returns up to n numbers below rows, evenly spaced.
func sampled(rows, n int) []int {
	var out []int
	for i := range min(rows, n) {
		out = append(out, i*rows/min(rows, n))
	}
	return out
}
