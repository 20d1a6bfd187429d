package vectorserver

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// TestTrainingSendsStatistics asks for statistics and holds them against the energy: it is the mean
// of the variances, weighted by rows.
func TestTrainingSendsStatistics(t *testing.T) {
	w := simWorker(t)
	rows := rowsOf(vectorRows(64, 2))
	got := w.train(t.Context(), t, training(func(c *pb.TrainingConfig) { c.ReturnStatistics = ptr(true) }), rows)
	require.NoError(t, got.err)
	require.Len(t, got.statistics, 1)
	s := got.statistics[0]
	require.Zero(t, s.GetFirst())
	require.Len(t, s.GetRows(), 4*8)
	require.Len(t, s.GetVariances(), 4*8)
	total, weighted, least, most := uint64(0), 0.0, math.Inf(1), 0.0
	for c := range 4 {
		n := binary.LittleEndian.Uint64(s.GetRows()[8*c:])
		v := math.Float64frombits(binary.LittleEndian.Uint64(s.GetVariances()[8*c:]))
		require.Positive(t, n)
		require.Positive(t, v)
		total += n
		weighted += v * float64(n)
		least, most = min(least, v), max(most, v)
	}
	require.EqualValues(t, 64, total)
	require.InEpsilon(t, got.finished.GetEnergy(), weighted/64, 1e-12)
	summary := got.finished.GetVariances()
	require.Equal(t, least, summary.GetLeast())
	require.Equal(t, most, summary.GetMost())
	require.GreaterOrEqual(t, summary.GetMedian(), least)
	require.LessOrEqual(t, summary.GetMean(), most)

	plain := w.train(t.Context(), t, training(nil), rows)
	require.NoError(t, plain.err)
	require.Empty(t, plain.statistics, "nobody asked")
	require.Equal(t, summary.GetMean(), plain.finished.GetVariances().GetMean())
}

// TestTrainingRefusesStatisticsOfTooMany has more codewords, of all subspaces, than a worker keeps
// statistics of.
func TestTrainingRefusesStatisticsOfTooMany(t *testing.T) {
	w := simWorker(t)
	err := w.train(t.Context(), t, training(func(c *pb.TrainingConfig) {
		c.Dimension, c.Codewords, c.Rows, c.ReturnStatistics = 128, 65536, 65536, ptr(true)
		c.Kind, c.Subspaces = pb.CodebookKind_CODEBOOK_KIND_PRODUCT, ptr(uint32(128))
	})).err
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	require.ErrorContains(t, err, "config.return_statistics: is true for 8388608 codewords, of all subspaces: want at most 4194304 of them")
}
