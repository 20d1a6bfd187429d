package vectorserver

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/gpuworker/vectors"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// training is the config of a small training.
func training(change func(*pb.TrainingConfig)) *pb.TrainingConfig {
	c := &pb.TrainingConfig{
		Dimension: 2, Rows: 64, ElementType: pb.ElementType_ELEMENT_TYPE_F32, Kind: pb.CodebookKind_CODEBOOK_KIND_FLAT, Codewords: 4,
		Seed: ptr(uint64(7)), MaxIterations: ptr(uint32(12)), StableIterations: ptr(uint32(1000)),
	}
	if change != nil {
		change(c)
	}
	return c
}

// vectorRows are n rows of d float32.
func vectorRows(n, d int) (out []byte) {
	x := uint32(1)
	for range n * d {
		x = x*1664525 + 1013904223
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(float32(x>>16)/4096))
	}
	return out
}

// result has all messages of a training.
type result struct {
	accepted    *pb.TrainingAccepted
	progress    []*pb.TrainingProgress
	checkpoints map[uint64][]byte
	codebook    []byte
	statistics  []*pb.CodewordStatistics
	finished    *pb.TrainingFinished
	err         error
}

// hear reads a training's call to its end.
func hear(t *testing.T, stream grpc.BidiStreamingClient[pb.TrainCodebookRequest, pb.TrainCodebookResponse]) result {
	t.Helper()
	out := result{checkpoints: map[uint64][]byte{}}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			out.err = err
			return out
		}
		require.Equal(t, "w1", m.GetWorkerId())
		require.Nil(t, out.finished, "finished is the last message")
		switch e := m.GetEvent().(type) {
		case *pb.TrainCodebookResponse_Accepted:
			require.Nil(t, out.accepted)
			out.accepted = e.Accepted
		case *pb.TrainCodebookResponse_Progress:
			require.NotNil(t, out.accepted)
			out.progress = append(out.progress, e.Progress)
		case *pb.TrainCodebookResponse_Checkpoint:
			c := e.Checkpoint
			require.EqualValues(t, len(out.checkpoints[c.GetIteration()]), c.GetOffset())
			out.checkpoints[c.GetIteration()] = append(out.checkpoints[c.GetIteration()], c.GetChunk()...)
		case *pb.TrainCodebookResponse_Codebook:
			out.codebook = append(out.codebook, e.Codebook...)
		case *pb.TrainCodebookResponse_Statistics:
			out.statistics = append(out.statistics, e.Statistics)
		case *pb.TrainCodebookResponse_Finished:
			out.finished = e.Finished
		}
	}
}

// train runs a training; messages follow the config.
func (w *worker) train(ctx context.Context, t *testing.T, c *pb.TrainingConfig, messages ...*pb.TrainCodebookRequest) result {
	t.Helper()
	stream, err := w.vectors.TrainCodebook(ctx)
	require.NoError(t, err)
	_ = stream.Send(&pb.TrainCodebookRequest{Event: &pb.TrainCodebookRequest_Config{Config: c}}) // hear returns the error
	for _, m := range messages {
		_ = stream.Send(m)
	}
	_ = stream.CloseSend()
	return hear(t, stream)
}

func rowsOf(b []byte) *pb.TrainCodebookRequest {
	return &pb.TrainCodebookRequest{Event: &pb.TrainCodebookRequest_Rows{Rows: b}}
}

func prologueOf(b []byte) *pb.TrainCodebookRequest {
	return &pb.TrainCodebookRequest{Event: &pb.TrainCodebookRequest_Prologue{Prologue: b}}
}

func simWorker(t *testing.T) *worker {
	t.Helper()
	return start(t, simDevice(t, sim.Options{}))
}

func TestTrainingIsDeterministic(t *testing.T) {
	// A training sends all its events, and equal calls give equal bytes.
	rpctest.NoLeaks(t)
	w := simWorker(t)
	rows, begin := vectorRows(64, 2), time.Now()
	first := w.train(t.Context(), t, training(nil), rowsOf(rows))
	took := time.Since(begin)
	require.NoError(t, first.err)
	require.EqualValues(t, 7, first.accepted.GetSeed())
	require.EqualValues(t, 64, first.accepted.GetSampledRows())
	require.Positive(t, first.accepted.GetDeviceBytes())
	require.Len(t, first.codebook, 4*2*2)
	rounds := 0
	for _, p := range first.progress {
		if took >= time.Second && p.Iteration != nil && p.GetIteration()+1 == uint64(rounds) {
			continue // after a second without news the last round is repeated
		}
		if p.Iteration != nil {
			require.EqualValues(t, rounds, p.GetIteration())
			require.Equal(t, rounds == 0, p.EnergyDelta == nil)
			require.EqualValues(t, 4, p.GetCodewords()+p.GetEmpty())
			rounds++
		}
	}
	require.Equal(t, 13, rounds)
	f := first.finished
	require.Equal(t, pb.TrainingReason_TRAINING_REASON_MAX_ITERATIONS, f.GetReason())
	require.EqualValues(t, 12, f.GetIterations())
	require.Len(t, f.GetCodebookDigest(), 64)
	require.Equal(t, vectors.Numerics, f.GetNumerics())
	require.Positive(t, f.GetEnergy())
	require.InDelta(t, float64(16+64)/(64*8), f.GetCompressionRatio(), 1e-12)
	require.NotNil(t, f.GetTimings().GetRounds())

	again := w.train(t.Context(), t, training(nil), rowsOf(rows[:8]), rowsOf(nil), rowsOf(rows[8:80]), rowsOf(rows[80:]))
	require.NoError(t, again.err)
	require.Equal(t, first.codebook, again.codebook)
	require.Equal(t, f.GetCodebookDigest(), again.finished.GetCodebookDigest())
	require.Equal(t, math.Float64bits(f.GetEnergy()), math.Float64bits(again.finished.GetEnergy()))

	unseeded := training(func(c *pb.TrainingConfig) { c.Seed = nil })
	drawn := w.train(t.Context(), t, unseeded, rowsOf(rows))
	require.NoError(t, drawn.err)
	unseeded.Seed = ptr(drawn.accepted.GetSeed())
	require.Equal(t, drawn.codebook, w.train(t.Context(), t, unseeded, rowsOf(rows)).codebook)
}

func TestTrainingResumesElsewhereFromCheckpoint(t *testing.T) {
	rows := vectorRows(64, 2)
	config := training(func(c *pb.TrainingConfig) { c.CheckpointInterval = ptr(uint32(4)) })
	want := simWorker(t).train(t.Context(), t, config, rowsOf(rows))
	require.NoError(t, want.err)
	require.Len(t, want.checkpoints, 3)
	other := simWorker(t)
	for iteration, state := range want.checkpoints {
		resumed := training(func(c *pb.TrainingConfig) { c.ResumeBytes = ptr(uint64(len(state))) })
		got := other.train(t.Context(), t, resumed, prologueOf(state[:9]), prologueOf(state[9:]), rowsOf(rows))
		require.NoError(t, got.err, "from %d", iteration)
		require.Equal(t, want.codebook, got.codebook)
		require.Equal(t, want.finished.GetCodebookDigest(), got.finished.GetCodebookDigest())
	}
}

func TestATrainingBeginsWithGivenCodewords(t *testing.T) {
	w := simWorker(t)
	rows := vectorRows(64, 2)
	given := training(func(c *pb.TrainingConfig) {
		c.Init, c.MaxIterations = pb.CodebookInit_CODEBOOK_INIT_GIVEN, ptr(uint32(0))
	})
	first := w.train(t.Context(), t, training(nil), rowsOf(rows))
	got := w.train(t.Context(), t, given, prologueOf(first.codebook), rowsOf(rows))
	require.NoError(t, got.err)
	require.Equal(t, first.codebook, got.codebook, "no iteration changes none of them")
	require.Zero(t, got.finished.GetIterations())
}

func TestEqualRowsGiveACodebookWithEmptyCodewords(t *testing.T) {
	w := simWorker(t)
	got := w.train(t.Context(), t, training(func(c *pb.TrainingConfig) { c.StableIterations = nil }), rowsOf(make([]byte, 64*8)))
	require.NoError(t, got.err)
	require.EqualValues(t, 3, got.finished.GetEmpty())
	require.Zero(t, got.finished.GetEnergy())
	require.Equal(t, pb.TrainingReason_TRAINING_REASON_CONVERGED, got.finished.GetReason())
}

func TestTrainingIsRefusedBeforeRowsAreRead(t *testing.T) {
	// A training that is impossible here is refused before its rows are read.
	w := simWorker(t)
	huge := w.train(t.Context(), t, training(func(c *pb.TrainingConfig) { c.Dimension, c.Rows = 65536, 1<<32-1 }))
	require.Equal(t, codes.ResourceExhausted, status.Code(huge.err))
	require.Equal(t, reason.DoesNotFit, rpc.Reason(huge.err))
	require.NotEmpty(t, rpc.Info(huge.err).GetMetadata()["needed_bytes"])
	require.NotEmpty(t, rpc.Info(huge.err).GetMetadata()["free_bytes"])
	mismatch := w.train(t.Context(), t, training(func(c *pb.TrainingConfig) { c.ResumeBytes = ptr(uint64(57)) }))
	require.Equal(t, codes.FailedPrecondition, status.Code(mismatch.err))
	require.Equal(t, reason.CheckpointMismatch, rpc.Reason(mismatch.err))
	var held []grpc.BidiStreamingClient[pb.TrainCodebookRequest, pb.TrainCodebookResponse]
	for range 2 {
		held = append(held, w.begin(t.Context(), t, training(nil)))
	}
	third := w.train(t.Context(), t, training(nil))
	require.Equal(t, codes.ResourceExhausted, status.Code(third.err))
	require.Equal(t, reason.TooManyTrainings, rpc.Reason(third.err))
	require.Positive(t, rpc.RetryAfter(third.err))
	for _, stream := range held {
		require.NoError(t, stream.Send(rowsOf(vectorRows(64, 2))))
		require.NoError(t, hearBehindAccepted(t, stream).err)
	}
	_, err := pb.NewWorkerServiceClient(w.conn).Drain(t.Context(), &pb.DrainRequest{})
	require.NoError(t, err)
	require.Equal(t, reason.WorkerDraining, rpc.Reason(w.train(t.Context(), t, training(nil)).err))
	_, err = w.vectors.Encode(t.Context(), &pb.EncodeRequest{Codebook: "x", ElementType: pb.ElementType_ELEMENT_TYPE_F32})
	require.Equal(t, reason.WorkerDraining, rpc.Reason(err))
}

// begin starts a training and returns when it is accepted.
func (w *worker) begin(ctx context.Context, t *testing.T, c *pb.TrainingConfig) grpc.BidiStreamingClient[pb.TrainCodebookRequest, pb.TrainCodebookResponse] {
	t.Helper()
	stream, err := w.vectors.TrainCodebook(ctx)
	require.NoError(t, err)
	require.NoError(t, stream.Send(&pb.TrainCodebookRequest{Event: &pb.TrainCodebookRequest_Config{Config: c}}))
	m, err := stream.Recv()
	require.NoError(t, err)
	require.NotNil(t, m.GetAccepted())
	return stream
}

func hearBehindAccepted(t *testing.T, stream grpc.BidiStreamingClient[pb.TrainCodebookRequest, pb.TrainCodebookResponse]) (out result) {
	t.Helper()
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			out.err = err
			return out
		}
		out.codebook = append(out.codebook, m.GetCodebook()...)
		if f := m.GetFinished(); f != nil {
			out.finished = f
		}
	}
}

func TestSilentSenderSeesProgressAndIsRefused(t *testing.T) {
	// A caller that stops sending gets progress while the worker waits; after the patience its call
	// ends.
	rpctest.NoLeaks(t)
	w := simWorker(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream := w.begin(ctx, t, training(nil))
	require.NoError(t, stream.Send(rowsOf(vectorRows(3, 2))))
	for told := uint64(0); told < 3; {
		m, err := stream.Recv()
		require.NoError(t, err)
		require.Equal(t, pb.TrainingPhase_TRAINING_PHASE_WRITING, m.GetProgress().GetPhase())
		told = m.GetProgress().GetRowsDone()
	}
	cancel()
	requireSoon(t, func() bool { return w.books.Stats().Trainings == 0 })

	w.server.patience = 200 * time.Millisecond
	got := w.silent(t, training(nil), rowsOf(vectorRows(3, 2)))
	require.Equal(t, codes.DeadlineExceeded, status.Code(got.err), "%v", got.err)
	require.Equal(t, reason.SilentSender, rpc.Reason(got.err))
	require.Equal(t, "200", rpc.Info(got.err).GetMetadata()["waited_ms"])
	require.Zero(t, w.books.Stats().Trainings)
}

// silent runs a training whose caller sends nothing after messages, and does not end its stream.
func (w *worker) silent(t *testing.T, c *pb.TrainingConfig, messages ...*pb.TrainCodebookRequest) result {
	t.Helper()
	stream, err := w.vectors.TrainCodebook(t.Context())
	require.NoError(t, err)
	_ = stream.Send(configOf(c)) // hear returns the error
	for _, m := range messages {
		_ = stream.Send(m)
	}
	return hear(t, stream)
}

func TestInboxTicksUntilPatienceEnds(t *testing.T) {
	// An inbox that waits for a sender calls tick once a second until its patience ends.
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		in := newInbox(ctx, 3500*time.Millisecond, func() (*pb.TrainCodebookRequest, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		ticks, begin := 0, time.Now()
		_, err := in.next(ctx, func() error { ticks++; return nil })
		require.Equal(t, reason.SilentSender, rpc.Reason(err), "%v", err)
		require.Equal(t, 3, ticks)
		require.Equal(t, 3500*time.Millisecond, time.Since(begin))
	})
}

func TestSlowReaderBlocksOnlyItself(t *testing.T) {
	// A caller that does not read holds up its own training only, and its call ends after the
	// patience.
	rpctest.NoLeaks(t)
	w := simWorker(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// Checkpoints of 256 KiB fill every buffer on the way.
	big := training(func(c *pb.TrainingConfig) {
		c.Dimension, c.Codewords, c.Rows, c.CheckpointInterval = 8192, 8, 8, ptr(uint32(1))
		c.MaxIterations, c.CodewordType = ptr(uint32(100000)), pb.ElementType_ELEMENT_TYPE_F32
	})
	rows := vectorRows(8, 8192)
	w.server.patience = 5 * time.Second // the sender gets the same, and takes a while
	stream := w.begin(ctx, t, big)
	require.NoError(t, stream.Send(rowsOf(rows)))
	w.server.patience = hang
	require.NoError(t, w.train(t.Context(), t, training(nil), rowsOf(vectorRows(64, 2))).err, "others go on")
	requireSoon(t, func() bool { return w.books.Stats().Failed == 1 })
	require.Zero(t, w.books.Stats().TrainingBytes)
	got := hearBehindAccepted(t, stream)
	require.Equal(t, codes.ResourceExhausted, status.Code(got.err), "%v", got.err)
	require.Equal(t, reason.SlowReader, rpc.Reason(got.err))
}

func requireSoon(t *testing.T, is func() bool) {
	t.Helper()
	require.Eventually(t, is, hang, 100*time.Microsecond)
}

func TestTrainingAndTokensDoNotChangeEachOther(t *testing.T) {
	alone := start(t, simDevice(t, sim.Options{}), "stories")
	wantTokens := alone.generate(t, "Once", 100)
	rows := vectorRows(64, 2)
	wantBook := alone.train(t.Context(), t, training(nil), rowsOf(rows))
	require.NoError(t, wantBook.err)

	w := start(t, simDevice(t, sim.Options{}), "stories")
	ended := make(chan result, 1)
	go func() {
		stream, err := w.vectors.TrainCodebook(t.Context())
		if err != nil {
			ended <- result{err: err}
			return
		}
		_ = stream.Send(&pb.TrainCodebookRequest{Event: &pb.TrainCodebookRequest_Config{Config: training(nil)}})
		_ = stream.Send(rowsOf(rows))
		ended <- hearBehindAccepted(t, stream)
	}()
	for range 3 {
		require.Equal(t, wantTokens, w.generate(t, "Once", 100))
	}
	got := <-ended
	require.NoError(t, got.err)
	require.Equal(t, wantBook.codebook, got.codebook)
}

// A worker that stops sends one more checkpoint to callers that want checkpoints, and lets the
// other trainings end.
func TestAWorkerThatStopsGivesALastCheckpoint(t *testing.T) {
	w := simWorker(t)
	config := training(func(c *pb.TrainingConfig) {
		c.MaxIterations, c.CheckpointInterval, c.StableIterations = ptr(uint32(1000000)), ptr(uint32(1000000)), ptr(uint32(1000000))
	})
	stream := w.begin(t.Context(), t, config)
	rows := vectorRows(64, 2)
	require.NoError(t, stream.Send(rowsOf(rows)))
	m, err := stream.Recv()
	for err == nil && m.GetProgress().Iteration == nil { // before the end of the first round there is no state to resume from
		m, err = stream.Recv()
	}
	require.NoError(t, err)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		w.stop()
	}()
	var state []byte
	for err == nil {
		m, err = stream.Recv()
		state = append(state, m.GetCheckpoint().GetChunk()...)
	}
	<-stopped
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	require.Equal(t, reason.WorkerStopping, rpc.Reason(err))
	require.NotEmpty(t, state)
	updates := binary.LittleEndian.Uint64(state[8:])
	config.MaxIterations, config.ResumeBytes = ptr(uint32(updates)), ptr(uint64(len(state)))
	got := simWorker(t).train(t.Context(), t, config, prologueOf(state), rowsOf(rows))
	require.NoError(t, got.err)
	config.ResumeBytes = nil
	want := simWorker(t).train(t.Context(), t, config, rowsOf(rows))
	require.Equal(t, want.codebook, got.codebook)
}

func TestADeviceWithoutVectorsSaysSo(t *testing.T) {
	w := start(t, struct{ engine.Device }{simDevice(t, sim.Options{})})
	got := w.train(t.Context(), t, training(nil))
	require.Equal(t, codes.Unimplemented, status.Code(got.err))
	require.Equal(t, reason.NotOnThisDevice, rpc.Reason(got.err))
	_, err := w.vectors.ListCodebooks(t.Context(), &pb.ListCodebooksRequest{})
	require.Equal(t, codes.Unimplemented, status.Code(err))
	_, err = w.vectors.Encode(t.Context(), &pb.EncodeRequest{Codebook: "x", ElementType: pb.ElementType_ELEMENT_TYPE_F32})
	require.Equal(t, codes.Unimplemented, status.Code(err))
	require.Nil(t, w.report(t).GetVectors())
}
