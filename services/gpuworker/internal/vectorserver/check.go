package vectorserver

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"math"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/vectors"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gpuworker/internal/server"
)

// The engine's values for the contract's enums.
var (
	elementOf = map[pb.ElementType]engine.Element{
		pb.ElementType_ELEMENT_TYPE_F32: engine.VectorF32, pb.ElementType_ELEMENT_TYPE_F16: engine.VectorF16,
		pb.ElementType_ELEMENT_TYPE_BF16: engine.VectorBF16, pb.ElementType_ELEMENT_TYPE_U8: engine.VectorU8,
		pb.ElementType_ELEMENT_TYPE_I8: engine.VectorI8,
	}
	codebookKindOf = map[pb.CodebookKind]engine.CodebookKind{
		pb.CodebookKind_CODEBOOK_KIND_FLAT: engine.Flat, pb.CodebookKind_CODEBOOK_KIND_PRODUCT: engine.Product,
	}
	metricOf = map[pb.VectorMetric]engine.Metric{
		pb.VectorMetric_VECTOR_METRIC_UNSPECIFIED: engine.L2, pb.VectorMetric_VECTOR_METRIC_L2: engine.L2,
		pb.VectorMetric_VECTOR_METRIC_INNER_PRODUCT: engine.InnerProduct, pb.VectorMetric_VECTOR_METRIC_COSINE: engine.Cosine,
	}
	algorithmOf = map[pb.TrainingAlgorithm]engine.Algorithm{
		pb.TrainingAlgorithm_TRAINING_ALGORITHM_UNSPECIFIED: engine.Lloyd, pb.TrainingAlgorithm_TRAINING_ALGORITHM_LLOYD: engine.Lloyd,
		pb.TrainingAlgorithm_TRAINING_ALGORITHM_ANNEALED: engine.Annealed,
	}
	initOf = map[pb.CodebookInit]engine.Init{
		pb.CodebookInit_CODEBOOK_INIT_RANDOM: engine.Random, pb.CodebookInit_CODEBOOK_INIT_KMEANS_PLUS_PLUS: engine.KMeansPlusPlus,
		pb.CodebookInit_CODEBOOK_INIT_FARTHEST: engine.Farthest, pb.CodebookInit_CODEBOOK_INIT_GIVEN: engine.Given,
	}
)

const (
	maxRows            = 1 << 40
	maxRowsPerCodeword = math.MaxUint32
	defaultUpdates     = 25
)

// checker checks the fields of requests.
type checker struct{ server.Checker }

// named returns the engine's value for an enum's, or adds a violation.
func named[E ~int32, V any](c *checker, field string, of map[E]V, value E) V {
	v, ok := of[value]
	if !ok {
		c.Add(field, "is %d: want a defined value, the field is required", value)
	}
	return v
}

// whole checks the range of a number; dflt is the value of an unset one.
func whole[N uint32 | uint64](c *checker, field string, v *N, dflt, low, high N) N {
	if v == nil {
		return dflt
	}
	if *v < low || *v > high {
		c.Add(field, "is %d, want [%d, %d]", *v, low, high)
		return dflt
	}
	return *v
}

// fraction checks a number with good; want describes the range, dflt is the value of an unset one.
func fraction(c *checker, field string, v *float64, dflt float64, want string, good func(float64) bool) float64 {
	if v == nil {
		return dflt
	}
	if math.IsNaN(*v) || math.IsInf(*v, 0) || !good(*v) {
		c.Add(field, "is %v, want %s", *v, want)
		return dflt
	}
	return *v
}

// codebook checks a shape; least is the smallest number of codewords.
func (c *checker) codebook(at string, s *pb.CodebookShape, least uint32) engine.CodebookDesc {
	if s == nil {
		s = &pb.CodebookShape{} // each required field adds its violation
	}
	d := engine.CodebookDesc{
		Kind: named(c, at+"kind", codebookKindOf, s.GetKind()), Metric: named(c, at+"metric", metricOf, s.GetMetric()),
		Dimension: int(whole(c, at+"dimension", &s.Dimension, 1, 1, engine.MaxDimension)),
		Codewords: int(whole(c, at+"codewords", &s.Codewords, least, least, engine.MaxCodewords)),
		Subspaces: int(s.GetSubspaces()), Type: elementOf[s.GetCodewordType()],
	}
	if t := s.GetCodewordType(); t < pb.ElementType_ELEMENT_TYPE_F32 || t > pb.ElementType_ELEMENT_TYPE_BF16 {
		c.Add(at+"codeword_type", "is %d: codewords are F32, F16 or BF16", t)
	}
	if values := int64(s.GetCodewords()) * int64(s.GetDimension()); values > engine.MaxCodebookValues {
		c.Add(at+"codewords", "%d of dimension %d have %d values, at most %d", s.GetCodewords(), s.GetDimension(), values,
			int64(engine.MaxCodebookValues))
	}
	switch n := s.GetSubspaces(); {
	case d.Kind == engine.Product && (n == 0 || n > s.GetDimension() || s.GetDimension()%n != 0):
		c.Add(at+"subspaces", "is %d, want a divisor of the dimension %d", n, s.GetDimension())
	case d.Kind == engine.Flat && n != 1:
		c.Add(at+"subspaces", "is %d: a FLAT codebook has 1", n)
	}
	if d.Kind == engine.Product && d.Metric != engine.L2 {
		c.Add(at+"metric", "is %v: a PRODUCT codebook supports L2 only", s.GetMetric())
	}
	return d
}

// jobOf checks all of a training's config. The error has every violation.
func jobOf(in *pb.TrainingConfig) (vectors.Job, error) {
	c := &checker{}
	shape := &pb.CodebookShape{
		Kind: in.GetKind(), Metric: in.GetMetric(), Dimension: in.GetDimension(), Codewords: in.GetCodewords(), Subspaces: 1,
		CodewordType: in.GetCodewordType(),
	}
	if shape.GetCodewordType() == pb.ElementType_ELEMENT_TYPE_UNSPECIFIED {
		shape.CodewordType = pb.ElementType_ELEMENT_TYPE_F16
	}
	if in.GetKind() == pb.CodebookKind_CODEBOOK_KIND_PRODUCT {
		shape.Subspaces = in.GetSubspaces()
	} else if in.Subspaces != nil {
		c.Add("config.subspaces", "is %d: leave it unset, a FLAT codebook has none", in.GetSubspaces())
	}
	j := vectors.Job{Rows: in.GetRows(), SaveAs: in.GetSaveAs()}
	t := &j.Trainer
	t.Codebook = c.codebook("config.", shape, 2)
	t.Element = named(c, "config.element_type", elementOf, in.GetElementType())
	t.Algorithm = named(c, "config.algorithm", algorithmOf, in.GetAlgorithm())
	if t.Algorithm == engine.Annealed && t.Codebook.Metric != engine.L2 {
		c.Add("config.metric", "is %v: ANNEALED supports L2 only", in.GetMetric())
	}
	c.rows(in, &j)
	c.init(in, t)
	c.ending(in, t)
	c.annealing(in, t)
	c.seed(in, t)
	j.Checkpoint = int(whole(c, "config.checkpoint_interval", in.CheckpointInterval, 0, 1, engine.MaxIterations))
	j.ResumeBytes = whole(c, "config.resume_bytes", in.ResumeBytes, 0, 1, math.MaxUint64)
	if in.SaveAs != nil {
		if err := vectors.CheckName(in.GetSaveAs()); err != nil {
			c.Add("config.save_as", "%v", err)
		}
	}
	j.Statistics = in.GetReturnStatistics()
	if n := t.Codebook.Codewords * t.Codebook.Subspaces; j.Statistics && n > vectors.MaxStatistics {
		c.Add("config.return_statistics", "is true for %d codewords, of all subspaces: want at most %d of them", n, vectors.MaxStatistics)
	}
	return j, c.Err()
}

func (c *checker) rows(in *pb.TrainingConfig, j *vectors.Job) {
	k := uint64(in.GetCodewords())
	if in.GetRows() < max(k, 2) || in.GetRows() > maxRows {
		c.Add("config.rows", "is %d, want [%d, %d]: at least one for each codeword", in.GetRows(), max(k, 2), uint64(maxRows))
	}
	j.MaxRows = k * whole(c, "config.max_rows_per_codeword", in.MaxRowsPerCodeword, 0, 1, maxRowsPerCodeword)
	if n := j.Sampled(); n > engine.MaxTrainingRows {
		c.Add("config.rows", "a training would have %d rows, at most %d: give a smaller max_rows_per_codeword", n, uint64(engine.MaxTrainingRows))
	}
}

func (c *checker) init(in *pb.TrainingConfig, t *engine.TrainerConfig) {
	spreads := in.GetCodewords() <= engine.MaxSequential && t.Codebook.Metric != engine.InnerProduct
	if in.GetInit() == pb.CodebookInit_CODEBOOK_INIT_UNSPECIFIED {
		t.Init = engine.Random
		if spreads {
			t.Init = engine.KMeansPlusPlus
		}
		return
	}
	t.Init = named(c, "config.init", initOf, in.GetInit())
	if (t.Init == engine.KMeansPlusPlus || t.Init == engine.Farthest) && !spreads {
		c.Add("config.init", "is %v: it is for at most %d codewords, and not for INNER_PRODUCT", in.GetInit(), engine.MaxSequential)
	}
}

// ending checks the fields that end a training.
func (c *checker) ending(in *pb.TrainingConfig, t *engine.TrainerConfig) {
	t.MaxIterations = int(whole(c, "config.max_iterations", in.MaxIterations, defaultUpdates, 0, engine.MaxIterations))
	t.StableRounds = int(whole(c, "config.stable_iterations", in.StableIterations, 1, 1, engine.MaxIterations))
	t.EnergyTolerance = fraction(c, "config.energy_tolerance", in.EnergyTolerance, -1, "a finite number of 0 or more",
		func(v float64) bool { return v >= 0 })
	t.MinChanges = -1
	if in.MinChanges != nil {
		t.MinChanges = int64(min(in.GetMinChanges(), math.MaxInt64))
	}
}

func (c *checker) annealing(in *pb.TrainingConfig, t *engine.TrainerConfig) {
	a := in.GetAnnealing()
	if t.Algorithm != engine.Annealed {
		if a != nil {
			c.Add("config.annealing", "is given: leave it unset, or choose the algorithm ANNEALED")
		}
		return
	}
	if a == nil {
		a = &pb.Annealing{}
	}
	const at = "config.annealing."
	positive := func(v float64) bool { return v > 0 }
	upToOne := func(v float64) bool { return v > 0 && v <= 1 }
	belowOne := func(v float64) bool { return v >= 0 && v < 1 }
	t.Annealing = engine.Annealing{
		Temperature:         fraction(c, at+"temperature", a.Temperature, 1, "a number in (0, 1]", upToOne),
		CoolingRate:         fraction(c, at+"cooling_rate", a.CoolingRate, 0.05, "a number in [0, 1)", belowOne),
		LearningRate:        fraction(c, at+"learning_rate", a.LearningRate, 0.5, "a number in (0, 1]", upToOne),
		Momentum:            fraction(c, at+"momentum", a.Momentum, 0, "a number in [0, 1)", belowOne),
		Trim:                fraction(c, at+"trim", a.Trim, 0, "a number in [0, 0.5]", func(v float64) bool { return v >= 0 && v <= 0.5 }),
		StepLimit:           fraction(c, at+"step_limit", a.StepLimit, 0, "a finite number above 0", positive),
		MaintenanceInterval: int(whole(c, at+"maintenance_interval", a.MaintenanceInterval, 0, 1, engine.MaxIterations)),
		MergeDistance:       fraction(c, at+"merge_distance", a.MergeDistance, 0, "a finite number above 0", positive),
		SplitLoad:           fraction(c, at+"split_load", a.SplitLoad, 0, "a finite number above 1", func(v float64) bool { return v > 1 }),
	}
}

// seed draws a seed if none is given. A training that resumes must have one.
func (c *checker) seed(in *pb.TrainingConfig, t *engine.TrainerConfig) {
	switch {
	case in.Seed != nil:
		t.Seed = in.GetSeed()
	case in.ResumeBytes != nil:
		c.Add("config.seed", "is required with resume_bytes: give the seed of `accepted`")
	default:
		var b [8]byte
		_, _ = rand.Read(b[:]) // never fails
		t.Seed = binary.LittleEndian.Uint64(b[:])
	}
}

// digestIn parses a digest that Checker.Digest has checked; nil if none is given.
func digestIn(text *string) *engine.Digest {
	if text == nil {
		return nil
	}
	var d engine.Digest
	_, _ = hex.Decode(d[:], []byte(*text)) // checked
	return &d
}

// refused refuses a request for one field.
func refused(field, problem string) error {
	c := &checker{}
	c.Add(field, "%s", problem)
	return c.Err()
}
