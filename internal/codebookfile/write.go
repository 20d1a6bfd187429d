package codebookfile

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"lukechampine.com/blake3"

	"github.com/millrace/millrace/internal/safetensors"
)

// History is how a codebook was trained. A nil field is not written.
type History struct {
	Energies []float64 // of each round
	Loads    []int64   // rows of each codeword, (subspaces, codewords)
	// Variances are the mean distances of these rows from each codeword, squared for L2, 0 without
	// rows.
	Variances []float64
	// Training has further texts, by name: rows and parameters of the training.
	Training map[string]string
}

// Write writes a codebook's file. codewords must give c.Bytes() bytes with the digest of c. After
// an error the file is unusable. w is not closed.
func Write(w io.Writer, c Codebook, codewords io.Reader, history History) error {
	if err := c.Check(); err != nil {
		return err
	}
	shape := c.shape()
	h := blake3.New(32, nil)
	sources := []safetensors.Source{{Name: codewordsName, Type: c.CodewordType, Shape: shape, Data: io.TeeReader(codewords, h)}}
	if history.Energies != nil {
		sources = append(sources, list(energiesName, safetensors.F64, history.Energies, math.Float64bits, int64(len(history.Energies))))
	}
	if history.Loads != nil {
		if want := c.Subspaces * c.Codewords; len(history.Loads) != want {
			return fmt.Errorf("%d loads, want one for each of %d codewords: %w", len(history.Loads), want, ErrCodebook)
		}
		sources = append(sources, list(loadsName, safetensors.I64, history.Loads, func(n int64) uint64 { return uint64(n) }, shape[:len(shape)-1]...))
	}
	if history.Variances != nil {
		if want := c.Subspaces * c.Codewords; len(history.Variances) != want {
			return fmt.Errorf("%d variances, want one for each of %d codewords: %w", len(history.Variances), want, ErrCodebook)
		}
		sources = append(sources, list(variancesName, safetensors.F64, history.Variances, math.Float64bits, shape[:len(shape)-1]...))
	}
	metadata := c.metadata()
	for name, text := range history.Training {
		metadata[trainingPrefix+name] = text
	}
	if err := safetensors.Write(w, metadata, sources); err != nil {
		return err
	}
	return c.match([32]byte(h.Sum(nil)))
}

func list[T any](name string, t safetensors.Type, values []T, bits func(T) uint64, shape ...int64) safetensors.Source {
	b := make([]byte, 0, 8*len(values))
	for _, v := range values {
		b = binary.LittleEndian.AppendUint64(b, bits(v))
	}
	return safetensors.Source{Name: name, Type: t, Shape: shape, Data: bytes.NewReader(b)}
}
