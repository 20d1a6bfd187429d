package rules

import (
	"fmt"
	"math"

	"github.com/millrace/millrace/gpuworker/engine"
)

// CheckCodebook refuses a shape of a codebook, and names the field that is out of range.
func CheckCodebook(d engine.CodebookDesc) error {
	switch {
	case d.Kind != engine.Flat && d.Kind != engine.Product:
		return invalid("codebook kind is %d: want 0 (flat) or 1 (product)", d.Kind)
	case d.Metric < engine.L2 || d.Metric > engine.Cosine:
		return invalid("metric is %d: want 0 (L2), 1 (inner product) or 2 (cosine)", d.Metric)
	case d.Dimension < 1 || d.Dimension > engine.MaxDimension:
		return invalid("dimension is %d: want 1 to %d", d.Dimension, engine.MaxDimension)
	case d.Codewords < 1 || d.Codewords > engine.MaxCodewords:
		return invalid("codewords are %d: want 1 to %d", d.Codewords, engine.MaxCodewords)
	case d.Subspaces < 1 || d.Dimension%d.Subspaces != 0:
		return invalid("subspaces are %d: want a divisor of the dimension %d", d.Subspaces, d.Dimension)
	case d.Kind == engine.Flat && d.Subspaces != 1:
		return invalid("subspaces are %d: a flat codebook has 1", d.Subspaces)
	case d.Kind == engine.Product && d.Metric != engine.L2:
		return invalid("metric is %d: a product codebook knows L2 alone", d.Metric)
	case d.Type != engine.VectorF32 && d.Type != engine.VectorF16 && d.Type != engine.VectorBF16:
		return invalid("codeword type is %d: want 0 (F32), 1 (F16) or 2 (BF16)", d.Type)
	case int64(d.Codewords)*int64(d.Dimension) > engine.MaxCodebookValues:
		return invalid("%d codewords of dimension %d have more than %d values", d.Codewords, d.Dimension, engine.MaxCodebookValues)
	}
	return nil
}

// CheckTrainer refuses a configuration of a training, and names the field that is out of range.
func CheckTrainer(c engine.TrainerConfig) error {
	if err := CheckCodebook(c.Codebook); err != nil {
		return err
	}
	sequential := c.Init == engine.KMeansPlusPlus || c.Init == engine.Farthest
	switch {
	case c.Element < 0 || c.Element >= engine.ElementCount:
		return invalid("element type is %d: want 0 to %d", c.Element, engine.ElementCount-1)
	case c.Rows < uint64(c.Codebook.Codewords) || c.Rows > engine.MaxTrainingRows:
		return invalid("rows are %d: want %d, one for each codeword, to %d", c.Rows, c.Codebook.Codewords, uint64(engine.MaxTrainingRows))
	case c.Algorithm != engine.Lloyd && c.Algorithm != engine.Annealed:
		return invalid("algorithm is %d: want 0 (Lloyd) or 1 (annealed)", c.Algorithm)
	case c.Algorithm == engine.Annealed && c.Codebook.Metric != engine.L2:
		return invalid("metric is %d: the annealed algorithm knows L2 alone", c.Codebook.Metric)
	case c.Init < engine.Random || c.Init > engine.Given:
		return invalid("init is %d: want 0 (random), 1 (k-means++), 2 (farthest) or 3 (given)", c.Init)
	case sequential && c.Codebook.Codewords > engine.MaxSequential:
		return invalid("codewords are %d: k-means++ and farthest take one step each and at most %d", c.Codebook.Codewords, engine.MaxSequential)
	case sequential && c.Codebook.Metric == engine.InnerProduct:
		return invalid("init is %d: an inner product is no distance to spread codewords by, want 0 (random) or 3 (given)", c.Init)
	case c.MaxIterations < 0 || c.MaxIterations > engine.MaxIterations:
		return invalid("max iterations are %d: want 0 to %d", c.MaxIterations, engine.MaxIterations)
	case c.StableRounds < 1 || c.StableRounds > engine.MaxIterations:
		return invalid("stable iterations are %d: want 1 to %d", c.StableRounds, engine.MaxIterations)
	case c.MinChanges < -1:
		return invalid("min changes are %d: want 0 or more, or -1", c.MinChanges)
	case c.EnergyTolerance != -1 && !within(c.EnergyTolerance, 0, math.MaxFloat64):
		return invalid("energy tolerance is %v: want a finite number of 0 or more, or -1", c.EnergyTolerance)
	case c.Algorithm == engine.Annealed:
		return checkAnnealing(c.Annealing)
	}
	return nil
}

func checkAnnealing(a engine.Annealing) error {
	belowOne, tiny := math.Nextafter(1, 0), math.SmallestNonzeroFloat64
	switch {
	case !within(a.Temperature, tiny, 1):
		return invalid("temperature is %v: want above 0, to 1", a.Temperature)
	case !within(a.CoolingRate, 0, belowOne):
		return invalid("cooling rate is %v: want 0 to below 1", a.CoolingRate)
	case !within(a.LearningRate, tiny, 1):
		return invalid("learning rate is %v: want above 0, to 1", a.LearningRate)
	case !within(a.Momentum, 0, belowOne):
		return invalid("momentum is %v: want 0 to below 1", a.Momentum)
	case !within(a.Trim, 0, 0.5):
		return invalid("trim is %v: want 0 to 0.5", a.Trim)
	case !within(a.StepLimit, 0, math.MaxFloat64):
		return invalid("step limit is %v: want a finite number above 0, or 0 for none", a.StepLimit)
	case a.MaintenanceInterval < 0 || a.MaintenanceInterval > engine.MaxIterations:
		return invalid("maintenance interval is %d: want 0 to %d", a.MaintenanceInterval, engine.MaxIterations)
	case !within(a.MergeDistance, 0, math.MaxFloat64):
		return invalid("merge distance is %v: want a finite number above 0, or 0 for none", a.MergeDistance)
	case a.SplitLoad != 0 && !within(a.SplitLoad, math.Nextafter(1, 2), math.MaxFloat64):
		return invalid("split load is %v: want a finite number above 1, or 0 for none", a.SplitLoad)
	}
	return nil
}

// within reports whether v is in the range. It is false for a NaN.
func within(v, low, high float64) bool { return v >= low && v <= high }

// CheckEncoding refuses an encoding that a codebook cannot do.
func CheckEncoding(d engine.CodebookDesc, e engine.Encoding) error {
	if e.Element < 0 || e.Element >= engine.ElementCount {
		return invalid("element type is %d: want 0 to %d", e.Element, engine.ElementCount-1)
	}
	if row := d.Dimension * e.Element.Size(); len(e.Rows)%row != 0 {
		return invalid("%d bytes of rows: want a multiple of %d, a row's", len(e.Rows), row)
	}
	most := 1
	if d.Kind == engine.Flat {
		most = min(engine.MaxNeighbours, d.Codewords)
	}
	if e.Neighbours < 1 || e.Neighbours > most {
		return invalid("neighbours are %d: want 1 to %d", e.Neighbours, most)
	}
	return nil
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), engine.ErrInvalid)
}
