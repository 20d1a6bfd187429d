package vectorserver

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"math"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/vectors"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gpuworker/internal/server"
	"github.com/millrace/millrace/services/internal/rpc"
)

// pieceBytes is the size of a message with a part of a codebook or checkpoint.
const pieceBytes = 1 << 20

// TrainCodebook implements VectorService.
func (s *Server) TrainCodebook(stream grpc.BidiStreamingServer[pb.TrainCodebookRequest, pb.TrainCodebookResponse]) error {
	ctx, stop := server.BeforeDeadline(stream.Context())
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c := &trainingCall{server: s, cancel: cancel, in: newInbox(ctx, s.patience, stream.Recv)}
	c.out = newMailer(s.patience, func(m *pb.TrainCodebookResponse) error { return unsent(stream.Send(m)) })
	err := c.run(ctx)
	if status.Code(err) == codes.Canceled { // a stream notices the cancellation a moment before its context
		err = context.Canceled
	}
	if c.training != nil {
		c.training.Fail(err)
		c.training.Close()
		s.worker.Nudge()
	}
	return statusOf(c.out.end(ctx, err))
}

// unsent returns why a message could not be sent. If the connection has ended, the caller has left;
// sending may notice that before the call's context does, and has its own text for it.
func unsent(err error) error {
	if status.Code(err) == codes.Unavailable {
		return context.Canceled
	}
	return err
}

// trainingCall is one call of TrainCodebook.
type trainingCall struct {
	server   *Server
	cancel   context.CancelCauseFunc
	in       *inbox[*pb.TrainCodebookRequest]
	out      *mailer[*pb.TrainCodebookResponse]
	job      vectors.Job
	training *vectors.Training // nil before it has begun
}

func (c *trainingCall) run(ctx context.Context) error {
	if err := c.begin(ctx); err != nil {
		return err
	}
	if err := c.collect(ctx); err != nil {
		return err
	}
	rpc.ReleaseRequest(ctx)
	go c.watch(ctx)
	events := &trainingEvents{call: c, ctx: ctx}
	end, err := c.training.Train(ctx, events)
	if err != nil {
		return err
	}
	c.training.Close() // so that others can use its memory, and the codebook if it is saved
	c.server.worker.Nudge()
	return c.finish(ctx, end)
}

// begin receives the config and reserves all the memory.
func (c *trainingCall) begin(ctx context.Context) error {
	first, err := c.in.next(ctx, nil)
	if errors.Is(err, io.EOF) || err == nil && first.GetConfig() == nil {
		return refused("config", "is missing: it is the first message")
	}
	if err != nil {
		return err
	}
	if c.job, err = jobOf(first.GetConfig()); err != nil {
		return err
	}
	if err := c.server.worker.Admit(); err != nil {
		return err
	}
	if c.training, err = c.server.manager.Begin(c.job); err != nil {
		return err
	}
	c.server.worker.Nudge()
	rpc.Annotate(ctx, "dimension", c.job.Trainer.Codebook.Dimension)
	rpc.Annotate(ctx, "codewords", c.job.Trainer.Codebook.Codewords)
	rpc.Annotate(ctx, "rows", c.job.Rows)
	cost := c.training.Cost()
	return c.send(ctx, &pb.TrainCodebookResponse{Event: &pb.TrainCodebookResponse_Accepted{Accepted: &pb.TrainingAccepted{
		Seed: c.job.Trainer.Seed, DeviceBytes: cost.DeviceBytes, SpoolBytes: cost.SpoolBytes, SampledRows: c.job.Sampled(),
	}}})
}

// collect receives the prologue and the rows.
func (c *trainingCall) collect(ctx context.Context) error {
	c.in.hear()
	tick := func() error {
		done, of := c.training.Received()
		return c.send(ctx, progressOfTraining(vectors.Progress{Phase: engine.Writing, RowsDone: done, RowsTotal: of}))
	}
	reported := time.Now()
	for !c.training.Complete() {
		m, err := c.in.next(ctx, tick)
		if errors.Is(err, io.EOF) {
			done, of := c.training.Received()
			return &vectors.InputError{Field: "rows", Problem: "the caller has ended sending: " + received(done, of)}
		}
		if err != nil {
			return err
		}
		if err := c.receive(m); err != nil {
			return err
		}
		if time.Since(reported) > time.Second {
			reported = time.Now()
			if err := tick(); err != nil {
				return err
			}
		}
	}
	return nil
}

// receive handles one message after the config.
func (c *trainingCall) receive(m *pb.TrainCodebookRequest) error {
	switch e := m.GetEvent().(type) {
	case *pb.TrainCodebookRequest_Rows:
		if len(e.Rows) > 0 {
			c.in.hear()
		}
		return c.training.Write(e.Rows)
	case *pb.TrainCodebookRequest_Prologue:
		if len(e.Prologue) > 0 {
			c.in.hear()
		}
		return c.training.Prologue(e.Prologue)
	case *pb.TrainCodebookRequest_Config:
		return &vectors.InputError{Field: "config", Problem: "it comes a second time: one call is one training"}
	}
	return &vectors.InputError{Field: "event", Problem: "is unset: want rows or prologue"}
}

// watch cancels the training if the caller sends too much, and interrupts it if the worker stops.
func (c *trainingCall) watch(ctx context.Context) {
	if stopping := rpc.Draining(ctx); stopping != nil {
		go func() {
			select {
			case <-stopping:
				c.training.Interrupt(vectors.ErrStopped)
			case <-ctx.Done():
			}
		}()
	}
	more := &vectors.InputError{Field: "rows", Problem: "a message follows the last declared row"}
	if err := c.in.rest(ctx, more); err != nil {
		c.cancel(err)
	}
}

// finish sends the codebook, saves it if requested, and ends the call. A codebook that could not be
// saved is finished nonetheless: the caller has it, and the status of the call says why this worker
// does not.
func (c *trainingCall) finish(ctx context.Context, end vectors.End) error {
	for rest := end.Codewords; len(rest) > 0; {
		n := min(len(rest), pieceBytes)
		if err := c.send(ctx, &pb.TrainCodebookResponse{Event: &pb.TrainCodebookResponse_Codebook{Codebook: rest[:n]}}); err != nil {
			return err
		}
		rest = rest[n:]
	}
	if err := c.sendStatistics(ctx, end.Statistics); err != nil {
		return err
	}
	var unsaved error
	if c.job.SaveAs != "" {
		unsaved = c.training.Save(ctx, end)
		c.server.files.age()
		c.server.worker.Nudge()
	}
	why := pb.TrainingReason_TRAINING_REASON_MAX_ITERATIONS
	if end.Reason == engine.Converged {
		why = pb.TrainingReason_TRAINING_REASON_CONVERGED
	}
	err := c.send(ctx, &pb.TrainCodebookResponse{Event: &pb.TrainCodebookResponse_Finished{Finished: &pb.TrainingFinished{
		CodebookDigest: hex.EncodeToString(end.Digest[:]), Reason: why, Iterations: uint64(end.Last.Iteration), Energy: end.Last.Energy,
		Empty: uint64(end.Last.Empty), CompressionRatio: end.Ratio, Numerics: vectors.Numerics, RecomputedShare: end.Recomputed,
		Timings: &pb.TrainingTimings{
			Writing: durationpb.New(end.Writing), Seeding: durationpb.New(end.Seeding), Rounds: durationpb.New(end.Rounds),
			Device: durationpb.New(end.Device),
		},
		Variances: summaryOf(end.Variances),
	}}})
	return cmp.Or(err, unsaved)
}

// statisticsAtOnce is the number of codewords in one message, of 16 bytes each.
const statisticsAtOnce = pieceBytes / 16

// sendStatistics sends rows and variance of each codeword if the request asks for them.
func (c *trainingCall) sendStatistics(ctx context.Context, s *vectors.Statistics) error {
	if s == nil {
		return nil
	}
	for first := 0; first < len(s.Rows); first += statisticsAtOnce {
		last := min(first+statisticsAtOnce, len(s.Rows))
		m := &pb.CodewordStatistics{First: uint64(first)}
		for i := first; i < last; i++ {
			m.Rows = binary.LittleEndian.AppendUint64(m.Rows, s.Rows[i])
			m.Variances = binary.LittleEndian.AppendUint64(m.Variances, math.Float64bits(s.Variances[i]))
		}
		if err := c.send(ctx, &pb.TrainCodebookResponse{Event: &pb.TrainCodebookResponse_Statistics{Statistics: m}}); err != nil {
			return err
		}
	}
	return nil
}

func summaryOf(s *vectors.Spread) *pb.VarianceSummary {
	if s == nil {
		return nil
	}
	return &pb.VarianceSummary{Least: s.Least, Median: s.Median, Most: s.Most, Mean: s.Mean}
}

func (c *trainingCall) send(ctx context.Context, m *pb.TrainCodebookResponse) error {
	m.WorkerId = c.server.workerID
	return c.out.send(ctx, m)
}
