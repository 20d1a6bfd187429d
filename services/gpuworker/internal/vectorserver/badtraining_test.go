package vectorserver

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// Every input that is wrong by itself gets a status with its field and holds no memory; the worker
// continues to serve.
func TestBadTrainingsNameTheField(t *testing.T) {
	rpctest.NoLeaks(t)
	w := simWorker(t)
	rows := vectorRows(64, 2)
	nan := vectorRows(64, 2)
	binary.LittleEndian.PutUint32(nan[33*8:], math.Float32bits(float32(math.Inf(1))))
	product := func(c *pb.TrainingConfig) { c.Kind = pb.CodebookKind_CODEBOOK_KIND_PRODUCT }
	annealed := func(a *pb.Annealing) *pb.TrainingConfig {
		return training(func(c *pb.TrainingConfig) {
			c.Algorithm, c.Annealing = pb.TrainingAlgorithm_TRAINING_ALGORITHM_ANNEALED, a
		})
	}
	for name, tc := range map[string]struct {
		config   *pb.TrainingConfig
		messages []*pb.TrainCodebookRequest
		field    string
		says     string
	}{
		"dimension 0":                        {config: training(func(c *pb.TrainingConfig) { c.Dimension = 0 }), field: "config.dimension", says: "is 0, want [1, 65536]"},
		"dimension 65537":                    {config: training(func(c *pb.TrainingConfig) { c.Dimension = 65537 }), field: "config.dimension", says: "is 65537"},
		"no element type":                    {config: training(func(c *pb.TrainingConfig) { c.ElementType = 0 }), field: "config.element_type"},
		"an element type of a later version": {config: training(func(c *pb.TrainingConfig) { c.ElementType = 99 }), field: "config.element_type", says: "is 99"},
		"no kind":                            {config: training(func(c *pb.TrainingConfig) { c.Kind = 0 }), field: "config.kind"},
		"one codeword":                       {config: training(func(c *pb.TrainingConfig) { c.Codewords = 1 }), field: "config.codewords", says: "is 1, want [2, 65536]"},
		"65537 codewords":                    {config: training(func(c *pb.TrainingConfig) { c.Codewords = 65537 }), field: "config.codewords", says: "is 65537"},
		"more codewords than rows":           {config: training(func(c *pb.TrainingConfig) { c.Codewords = 65 }), field: "config.rows", says: "is 64, want [65, 1099511627776]"},
		"more rows than there can be":        {config: training(func(c *pb.TrainingConfig) { c.Rows = 1<<40 + 1 }), field: "config.rows"},
		"too many rows to train on":          {config: training(func(c *pb.TrainingConfig) { c.Rows = 1 << 32 }), field: "config.rows", says: "give a smaller max_rows_per_codeword"},
		"codewords times dimension":          {config: training(func(c *pb.TrainingConfig) { c.Dimension, c.Codewords, c.Rows = 65536, 65536, 1<<20 }), field: "config.codewords", says: "4294967296 values, at most 2147483647"},
		"no subspaces":                       {config: training(product), field: "config.subspaces", says: "is 0, want a divisor of the dimension 2"},
		"subspaces that do not divide":       {config: training(func(c *pb.TrainingConfig) { product(c); c.Dimension, c.Subspaces = 8, ptr(uint32(3)) }), field: "config.subspaces", says: "is 3, want a divisor of the dimension 8"},
		"subspaces of a flat one":            {config: training(func(c *pb.TrainingConfig) { c.Subspaces = ptr(uint32(1)) }), field: "config.subspaces"},
		"codewords of bytes":                 {config: training(func(c *pb.TrainingConfig) { c.CodewordType = pb.ElementType_ELEMENT_TYPE_U8 }), field: "config.codeword_type"},
		"a product of cosines": {config: training(func(c *pb.TrainingConfig) {
			product(c)
			c.Subspaces = ptr(uint32(2))
			c.Metric = pb.VectorMetric_VECTOR_METRIC_COSINE
		}), field: "config.metric"},
		"annealed cosines": {config: training(func(c *pb.TrainingConfig) {
			c.Algorithm = pb.TrainingAlgorithm_TRAINING_ALGORITHM_ANNEALED
			c.Metric = pb.VectorMetric_VECTOR_METRIC_COSINE
		}), field: "config.metric"},
		"an unknown metric":    {config: training(func(c *pb.TrainingConfig) { c.Metric = 9 }), field: "config.metric"},
		"an unknown algorithm": {config: training(func(c *pb.TrainingConfig) { c.Algorithm = 9 }), field: "config.algorithm"},
		"an unknown init":      {config: training(func(c *pb.TrainingConfig) { c.Init = 9 }), field: "config.init"},
		"an init for few codewords": {config: training(func(c *pb.TrainingConfig) {
			c.Codewords, c.Rows, c.Init = 4097, 5000, pb.CodebookInit_CODEBOOK_INIT_FARTHEST
		}), field: "config.init", says: "at most 4096"},
		"too many iterations":     {config: training(func(c *pb.TrainingConfig) { c.MaxIterations = ptr(uint32(1000001)) }), field: "config.max_iterations", says: "is 1000001"},
		"a tolerance of NaN":      {config: training(func(c *pb.TrainingConfig) { c.EnergyTolerance = ptr(math.NaN()) }), field: "config.energy_tolerance"},
		"a negative tolerance":    {config: training(func(c *pb.TrainingConfig) { c.EnergyTolerance = ptr(-0.5) }), field: "config.energy_tolerance", says: "is -0.5"},
		"no stable rounds":        {config: training(func(c *pb.TrainingConfig) { c.StableIterations = ptr(uint32(0)) }), field: "config.stable_iterations"},
		"no rows a codeword":      {config: training(func(c *pb.TrainingConfig) { c.MaxRowsPerCodeword = ptr(uint64(0)) }), field: "config.max_rows_per_codeword"},
		"no interval":             {config: training(func(c *pb.TrainingConfig) { c.CheckpointInterval = ptr(uint32(0)) }), field: "config.checkpoint_interval"},
		"a resume without a seed": {config: training(func(c *pb.TrainingConfig) { c.Seed, c.ResumeBytes = nil, ptr(uint64(56)) }), field: "config.seed"},
		"annealing of Lloyd":      {config: training(func(c *pb.TrainingConfig) { c.Annealing = &pb.Annealing{} }), field: "config.annealing"},
		"temperature 0":           {config: annealed(&pb.Annealing{Temperature: ptr(0.0)}), field: "config.annealing.temperature"},
		"cooling rate 1":          {config: annealed(&pb.Annealing{CoolingRate: ptr(1.0)}), field: "config.annealing.cooling_rate"},
		"learning rate 1.5":       {config: annealed(&pb.Annealing{LearningRate: ptr(1.5)}), field: "config.annealing.learning_rate", says: "is 1.5"},
		"momentum 1":              {config: annealed(&pb.Annealing{Momentum: ptr(1.0)}), field: "config.annealing.momentum"},
		"trim 0.6":                {config: annealed(&pb.Annealing{Trim: ptr(0.6)}), field: "config.annealing.trim"},
		"step limit infinite":     {config: annealed(&pb.Annealing{StepLimit: ptr(math.Inf(1))}), field: "config.annealing.step_limit"},
		"maintenance never":       {config: annealed(&pb.Annealing{MaintenanceInterval: ptr(uint32(0))}), field: "config.annealing.maintenance_interval"},
		"merge distance 0":        {config: annealed(&pb.Annealing{MergeDistance: ptr(0.0)}), field: "config.annealing.merge_distance"},
		"split load 1":            {config: annealed(&pb.Annealing{SplitLoad: ptr(1.0)}), field: "config.annealing.split_load"},

		"too few rows":                     {config: training(nil), messages: []*pb.TrainCodebookRequest{rowsOf(rows[:80])}, field: "rows", says: "10 of 64 declared rows have come"},
		"too many rows":                    {config: training(nil), messages: []*pb.TrainCodebookRequest{rowsOf(append(vectorRows(64, 2), rows[:8]...))}, field: "rows", says: "65 come after 0, and 64 were declared"},
		"half a row":                       {config: training(nil), messages: []*pb.TrainCodebookRequest{rowsOf(rows[:12])}, field: "rows", says: "12 bytes after row 0"},
		"an infinity":                      {config: training(nil), messages: []*pb.TrainCodebookRequest{rowsOf(nan[:80]), rowsOf(nan[80:])}, field: "rows", says: "row 33"},
		"a second config":                  {config: training(nil), messages: []*pb.TrainCodebookRequest{{Event: &pb.TrainCodebookRequest_Config{Config: training(nil)}}}, field: "config", says: "a second time"},
		"an empty message":                 {config: training(nil), messages: []*pb.TrainCodebookRequest{{}}, field: "event"},
		"a prologue that nobody asked for": {config: training(nil), messages: []*pb.TrainCodebookRequest{prologueOf(rows)}, field: "prologue"},
		"rows in place of a prologue":      {config: training(func(c *pb.TrainingConfig) { c.Init = pb.CodebookInit_CODEBOOK_INIT_GIVEN }), messages: []*pb.TrainCodebookRequest{rowsOf(rows)}, field: "prologue"},
		"save_as above the folder":         {config: training(func(c *pb.TrainingConfig) { c.SaveAs = ptr("../x") }), field: "config.save_as", says: `"../x"`},
	} {
		t.Run(name, func(t *testing.T) {
			got := w.train(t.Context(), t, tc.config, tc.messages...)
			require.Equal(t, codes.InvalidArgument, status.Code(got.err), "%v", got.err)
			require.Contains(t, violated(got.err), tc.field)
			require.ErrorContains(t, got.err, tc.says)
			require.Contains(t, []string{reason.InvalidArgument, reason.BadTrainingInput}, rpc.Reason(got.err))
			require.Equal(t, len(tc.messages) > 0, got.accepted != nil, "a config that is wrong is not accepted, and one that is right is")
		})
	}
	for _, first := range []*pb.TrainCodebookRequest{{}, rowsOf(rows), prologueOf(rows), nil} {
		stream, err := w.vectors.TrainCodebook(t.Context())
		require.NoError(t, err)
		if first != nil {
			require.NoError(t, stream.Send(first))
		}
		require.NoError(t, stream.CloseSend())
		got := hear(t, stream)
		require.Equal(t, []string{"config"}, violated(got.err), "%v", got.err)
		require.Nil(t, got.accepted)
	}
	require.Zero(t, w.books.Stats().Trainings)
	got := w.train(t.Context(), t, training(nil), rowsOf(rows))
	require.NoError(t, got.err)
}
