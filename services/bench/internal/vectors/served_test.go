package vectors

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/proc"
	"github.com/millrace/millrace/services/bench/internal/proc/proctest"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// workerBinary is the shipped worker, built by TestMain.
var workerBinary string

func TestMain(m *testing.M) { proctest.MainWithWorker(m, &workerBinary) }

// worker is the address of the shipped worker on a simulated device, until the test ends.
func worker(t *testing.T) string {
	t.Helper()
	rpctest.NoLeaks(t)
	folder, err := os.MkdirTemp("", "s") //nolint:usetesting // a socket's path is short
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(folder)) })
	address := "unix:" + filepath.Join(folder, "worker") // a port that is free now may be taken by the time it is wanted
	program, err := proc.Start(context.WithoutCancel(t.Context()), "worker", workerBinary, "--listen", address, "--device", "sim",
		"--models", t.TempDir(), "--codebooks", t.TempDir())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, program.Stop(45*time.Second)) })
	c := small()
	c.Target = address
	require.NoError(t, program.Wait(t.Context(), time.Minute, func(ctx context.Context) error {
		s, err := dial(ctx, &c)
		if err != nil {
			return err
		}
		return s.close()
	}))
	return address
}

func TestServedCodesEqualTheDevices(t *testing.T) {
	c := small(PartEncode, PartProduct)
	c.Target = worker(t)
	report, err := Run(t.Context(), simulated, c, quiet)
	require.NoError(t, err)
	require.Len(t, report.Lines, 4)
	for _, l := range report.Lines {
		require.NotNil(t, l.Served, l.Row)
		require.Positive(t, l.Served.OfDirect)
		require.InEpsilon(t, float64(l.Rows)/l.Served.Seconds.Min, l.Served.VectorsPerSecond.Max, 1e-9)
	}
	v, known := report.Figure("encode/f32/12/5", "of_direct")
	require.True(t, known)
	require.Positive(t, v)
	var text bytes.Buffer
	report.Print(&text)
	require.Contains(t, text.String(), "by calls to "+c.Target)

	conns, hangUp, err := load.Dial(c.Target, 1)
	require.NoError(t, err)
	defer hangUp()
	list, err := pb.NewVectorServiceClient(conns[0]).ListCodebooks(t.Context(), &pb.ListCodebooksRequest{})
	require.NoError(t, err)
	for _, book := range list.GetCodebooks() {
		require.Equal(t, pb.CodebookState_CODEBOOK_STATE_ON_DISK, book.GetState(), "it was unloaded")
	}
}

func TestServedTrainingGivesTheDevicesCodebook(t *testing.T) {
	c := small(PartTrain)
	c.Target = worker(t)
	s, err := dial(t.Context(), &c)
	require.NoError(t, err)
	dev, err := simulated(0)
	require.NoError(t, err)
	defer func() { require.NoError(t, errors.Join(s.close(), dev.Close())) }()
	r := &run{ctx: t.Context(), cfg: c, dev: dev, vec: dev.(engine.Vectors), served: s, kind: "sim", progress: quiet}
	annealed := r.trainings()[0] // with smaller sizes
	annealed.desc.Codewords, annealed.desc.Dimension, annealed.rows = 4, 3, 60
	annealed.train.Codebook, annealed.train.Rows = annealed.desc, 60
	for _, j := range []job{trainingJob(r), annealed} {
		line := j.line(PartTrain)
		_, err = j.measure(&j, line)
		require.NoError(t, err)
		require.Positive(t, line.Served.OfDirect)
	}
	j := trainingJob(r)
	_, err = r.servedTrain(&j, j.line(PartTrain), j.data(1), nil)
	require.ErrorIs(t, err, ErrWrong, "another codebook than wanted")
}

func TestRunFailsIfTheTargetDoesNotAnswer(t *testing.T) {
	address, err := proc.FreeAddress(t.Context())
	require.NoError(t, err)
	c := small(PartEncode)
	c.Target = address
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = Run(ctx, simulated, c, quiet)
	require.ErrorContains(t, err, address)
}
