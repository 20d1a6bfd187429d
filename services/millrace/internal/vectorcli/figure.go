package vectorcli

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference/vq"
	"github.com/millrace/millrace/internal/codebookfile"
	"github.com/millrace/millrace/internal/vectorfile"
	"github.com/millrace/millrace/services/millrace/internal/plot"
)

// trainingStatistics has the energies, loads and variances that a training recorded; each is nil if
// it did not.
type trainingStatistics struct {
	energies  []float64
	loads     []int64   // rows of each codeword, (subspaces, codewords)
	variances []float64 // likewise
}

// figure returns the picture of a codebook, without a scatter.
func (s trainingStatistics) figure(path string, c codebookfile.Codebook) plot.Figure {
	f := plot.Figure{
		Title:    fmt.Sprintf("%s: %s", filepath.Base(path), shapeText(shapeOf(c))),
		Energies: s.energies, Loads: s.loads, Subspaces: c.Subspaces,
	}
	if c.Subspaces > 1 {
		f.SubspaceEnergies = s.subspaceEnergies(c.Subspaces)
	} else {
		f.Variances = s.withRows()
	}
	return f
}

// withRows returns the variances of the codewords that have rows: all if the loads are not
// recorded.
func (s trainingStatistics) withRows() (variances []float64) {
	for c, v := range s.variances {
		if c >= len(s.loads) || s.loads[c] > 0 {
			variances = append(variances, v)
		}
	}
	return variances
}

// subspaceEnergies returns the mean distance of the rows from their codewords in each subspace:
// together they are the energy. It returns nil if loads or variances are not recorded.
func (s trainingStatistics) subspaceEnergies(subspaces int) []float64 {
	if len(s.loads) == 0 || len(s.variances) != len(s.loads) {
		return nil
	}
	energies, k := make([]float64, subspaces), len(s.loads)/subspaces
	for i := range energies {
		rows := 0.0
		for c := i * k; c < (i+1)*k; c++ {
			rows += float64(s.loads[c])
			energies[i] += float64(float64(s.loads[c]) * s.variances[c]) // rounded, so that all machines draw the same
		}
		energies[i] /= max(rows, 1)
	}
	return energies
}

var engineElements = map[vectorfile.ElementType]engine.Element{
	vectorfile.F32: engine.VectorF32, vectorfile.F16: engine.VectorF16, vectorfile.BF16: engine.VectorBF16,
	vectorfile.U8: engine.VectorU8, vectorfile.I8: engine.VectorI8,
}

// maxCrossings bounds the codewords of a product codebook of dimension 2 that are drawn: they are
// the crossings of the codewords of both subspaces.
const maxCrossings = 400

// scatter returns rows and codewords of dimension 2 to draw. It returns nil for other dimensions,
// and if there are neither. rows may be nil.
func scatter(c codebookfile.Codebook, codewords io.Reader, rows rowSource, element vectorfile.ElementType) (*plot.Scatter, error) {
	if c.Dimension != 2 {
		return nil, nil
	}
	raw, err := io.ReadAll(codewords)
	if err != nil {
		return nil, err
	}
	s := &plot.Scatter{}
	switch values := vq.Decode(engineElements[rowTypes[key(tensorTypes, c.CodewordType)]], raw); {
	case c.Subspaces != 2:
		s.Codewords = points(values)
	case c.Codewords*c.Codewords <= maxCrossings:
		for _, x := range values[:c.Codewords] {
			for _, y := range values[c.Codewords:] {
				s.Codewords = append(s.Codewords, plot.Point{x, y})
			}
		}
	}
	if rows == nil && len(s.Codewords) == 0 {
		return nil, nil
	}
	if rows == nil {
		return s, nil
	}
	s.AllRows = rows.Rows()
	n := min(s.AllRows, plot.MaxRows)
	row := make([]byte, rows.RowBytes())
	for i := range n {
		// One row of each of n equal parts, drawn at random: every n-th row would show part of the
		// data only if the data have a period.
		number := vq.Sample(0, uint64(i), uint64(n), uint64(s.AllRows))
		if _, err := rows.ReadRows(row, int64(number)); err != nil {
			return nil, err
		}
		s.Rows = append(s.Rows, points(vq.Decode(engineElements[element], row))...)
	}
	return s, nil
}

func points(values []float64) []plot.Point {
	list := make([]plot.Point, len(values)/2)
	for i := range list {
		list[i] = plot.Point{values[2*i], values[2*i+1]}
	}
	return list
}
