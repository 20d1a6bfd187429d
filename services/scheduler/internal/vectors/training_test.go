package vectors_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/vectors"
	"github.com/millrace/millrace/services/scheduler/internal/workertest"
)

type (
	trainingStream = grpc.BidiStreamingServer[pb.TrainCodebookRequest, pb.TrainCodebookResponse]
	trainingClient = grpc.BidiStreamingClient[pb.TrainCodebookRequest, pb.TrainCodebookResponse]
)

func config(rows uint64, dimension uint32) *pb.TrainCodebookRequest {
	return &pb.TrainCodebookRequest{Event: &pb.TrainCodebookRequest_Config{Config: &pb.TrainingConfig{
		Dimension: dimension, Rows: rows, ElementType: pb.ElementType_ELEMENT_TYPE_U8, Kind: pb.CodebookKind_CODEBOOK_KIND_FLAT, Codewords: 2,
	}}}
}

func rowsOf(b []byte) *pb.TrainCodebookRequest {
	return &pb.TrainCodebookRequest{Event: &pb.TrainCodebookRequest_Rows{Rows: b}}
}

// rest reads a training to its end.
func rest(stream trainingClient) (all []*pb.TrainCodebookResponse, err error) {
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		all = append(all, m)
	}
}

// begin begins a training and reads `accepted`.
func (r *rig) begin(ctx context.Context, in *pb.TrainCodebookRequest) trainingClient {
	r.Helper()
	stream, err := r.TrainCodebook(ctx)
	require.NoError(r, err)
	require.NoError(r, stream.Send(in))
	m, err := stream.Recv()
	require.NoError(r, err)
	require.NotNil(r, m.GetAccepted(), "%v", m)
	return stream
}

// checkpointed sends a whole checkpoint of iteration 5 and a part of one of iteration 10, then
// waits for the end of the call.
func checkpointed(stream trainingStream) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	for _, m := range []*pb.TrainCodebookResponse{workertest.Accepted(), workertest.Checkpoint(5, 0, 2), workertest.Checkpoint(5, 1, 2),
		workertest.Checkpoint(10, 0, 2)} {
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	<-stream.Context().Done()
	return stream.Context().Err()
}

func TestTrainingIsRelayedWhole(t *testing.T) {
	// A training is relayed whole, and its rows may be sent before it is accepted.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vectors.Config{}, []string{"w1", "w2"}, nil)
		stream, err := r.TrainCodebook(r.within())
		require.NoError(t, err)
		const pieces, size = 5, 3 << 20
		require.NoError(t, stream.Send(config(pieces*size/64, 64)))
		sum := sha256.New()
		for i := range byte(pieces) {
			piece := rows(size, i)
			sum.Write(piece)
			require.NoError(t, stream.Send(rowsOf(piece)))
		}
		require.NoError(t, stream.CloseSend())
		all, err := rest(stream)
		require.NoError(t, err)
		require.Len(t, all, 5)
		require.NotNil(t, all[0].GetAccepted())
		require.Equal(t, sum.Sum(nil), all[3].GetCodebook())
		require.NotNil(t, all[4].GetFinished())
		r.idle()
	})
}

// The status of a worker that could not save the codebook follows `finished` unchanged. If the
// worker is lost then, the training is not.
func TestStatusAfterFinishedIsRelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ending := func(_ string, w *workertest.Worker) {
			w.OnTrain = func(stream trainingStream) error {
				first, err := stream.Recv()
				if err != nil {
					return err
				}
				for _, m := range []*pb.TrainCodebookResponse{workertest.Accepted(),
					{Event: &pb.TrainCodebookResponse_Finished{Finished: &pb.TrainingFinished{Iterations: 2}}}} {
					if err := stream.Send(m); err != nil {
						return err
					}
				}
				if first.GetConfig().GetSaveAs() == "taken" {
					return workertest.Refusal(codes.AlreadyExists, reason.CodebookExists, "taken")
				}
				<-stream.Context().Done()
				return stream.Context().Err()
			}
		}
		r := newRig(t, vectors.Config{}, []string{"w1"}, ending)
		in := config(8, 8)
		for name, want := range map[string]struct {
			domain string
			code   codes.Code
			reason string
		}{
			"taken": {rpc.WorkerDomain, codes.AlreadyExists, reason.CodebookExists},
			"lost":  {rpc.SchedulerDomain, codes.Unavailable, reason.WorkerLost},
		} {
			in.GetConfig().SaveAs = &name
			stream := r.begin(r.within(), in)
			m, err := stream.Recv()
			require.NoError(t, err)
			require.NotNil(t, m.GetFinished())
			if name == "lost" {
				r.processes["w1"].Kill()
			}
			_, err = rest(stream)
			refused(t, err, want.domain, want.code, want.reason)
			require.NotContains(t, err.Error(), "checkpoint")
			if name == "lost" {
				r.await(0)
				r.start("w1", "j", ending)
				r.await(1)
			}
		}
		r.idle()
	})
}

func TestTrainingsGoToTheWorkerWithTheFewest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vectors.Config{}, []string{"w1", "w2"}, func(_ string, w *workertest.Worker) { w.OnTrain = checkpointed })
		ctx, cancel := context.WithCancel(r.within())
		for range 4 {
			r.begin(ctx, config(8, 8))
		}
		require.EqualValues(t, 2, r.workers["w1"].Training.Load())
		require.EqualValues(t, 2, r.workers["w2"].Training.Load())
		stream, err := r.TrainCodebook(r.within())
		require.NoError(t, err)
		require.NoError(t, stream.Send(config(8, 8)))
		_, err = stream.Recv()
		refused(t, err, rpc.SchedulerDomain, codes.ResourceExhausted, reason.TooManyTrainings)
		require.Positive(t, rpc.RetryAfter(err))
		cancel()
		r.idle()
	})
}

func TestRefusedTrainingIsOfferedToAnother(t *testing.T) {
	// A training that a worker refuses is offered to another one.
	synctest.Test(t, func(t *testing.T) {
		var refusals atomic.Int64
		r := newRig(t, vectors.Config{}, []string{"w1", "w2", "w3"}, func(id string, w *workertest.Worker) {
			if id == "w2" {
				return
			}
			w.OnTrain = func(stream trainingStream) error {
				if _, err := stream.Recv(); err != nil {
					return err
				}
				refusals.Add(1)
				return workertest.Refusal(codes.ResourceExhausted, reason.DoesNotFit, "too large")
			}
		})
		for n := 0; n < 6 || refusals.Load() == 0; n++ { // the first worker is drawn at random
			require.Less(t, n, 1000, "nobody was asked in vain")
			stream, err := r.TrainCodebook(r.within())
			require.NoError(t, err)
			require.NoError(t, stream.Send(config(2, 8)))
			require.NoError(t, stream.Send(rowsOf(rows(16, 1))))
			all, err := rest(stream)
			require.NoError(t, err)
			require.Len(t, all, 5)
			r.idle()
		}
	})
}

func TestTrainingRefusedByAllEndsWithTheirStatus(t *testing.T) {
	// A training that every worker refuses ends with the status of the last one.
	for name, tc := range map[string]struct {
		code   codes.Code
		reason string
		asked  int64
	}{
		"it fits nowhere":     {codes.ResourceExhausted, reason.DoesNotFit, 2},
		"they take none":      {codes.Unavailable, reason.NoTrainings, 2},
		"a value is wrong":    {codes.InvalidArgument, reason.InvalidArgument, 1},
		"it is no checkpoint": {codes.FailedPrecondition, reason.CheckpointMismatch, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var asked atomic.Int64
				r := newRig(t, vectors.Config{}, []string{"w1", "w2"}, func(_ string, w *workertest.Worker) {
					w.OnTrain = func(trainingStream) error {
						asked.Add(1)
						return workertest.Refusal(tc.code, tc.reason, "said")
					}
				})
				stream, err := r.TrainCodebook(r.within())
				require.NoError(t, err)
				require.NoError(t, stream.Send(config(2, 8)))
				_, err = stream.Recv()
				refused(t, err, rpc.WorkerDomain, tc.code, tc.reason)
				require.Equal(t, tc.asked, asked.Load())
				r.idle()
			})
		})
	}
}

func TestAFleetThatTakesNoTrainingsSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vectors.Config{}, []string{"w1", "w2"}, func(id string, w *workertest.Worker) {
			w.Change(func(report *pb.WorkerReport) {
				report.Vectors.MaxTrainings = 0
				if id == "w1" {
					report.Vectors = nil
				}
			})
		})
		stream, err := r.TrainCodebook(r.within())
		require.NoError(t, err)
		require.NoError(t, stream.Send(config(2, 8)))
		_, err = stream.Recv()
		refused(t, err, rpc.SchedulerDomain, codes.Unavailable, reason.NoTrainings)
	})
}

func TestATrainingThatIsCancelledEndsAtItsWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vectors.Config{}, []string{"w1"}, func(_ string, w *workertest.Worker) { w.OnTrain = checkpointed })
		for range 20 {
			ctx, cancel := context.WithCancel(r.within())
			stream := r.begin(ctx, config(8, 8))
			cancel()
			_, err := rest(stream)
			require.Equal(t, codes.Canceled, status.Code(err))
			r.idle()
		}
	})
}

func TestATrainingWhoseWorkerIsLostSaysHowToGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vectors.Config{}, []string{"w1"}, func(_ string, w *workertest.Worker) { w.OnTrain = checkpointed })
		stream := r.begin(r.patient(), config(8, 8))
		for range 3 {
			_, err := stream.Recv()
			require.NoError(t, err)
		}
		r.processes["w1"].Kill()
		_, err := rest(stream)
		refused(t, err, rpc.SchedulerDomain, codes.Unavailable, reason.WorkerLost)
		require.Equal(t, map[string]string{"worker_id": "w1", "checkpoint_iteration": "5"}, rpc.Info(err).GetMetadata(),
			"the one of iteration 10 is not whole")
		require.Contains(t, status.Convert(err).Message(), "resume_bytes")
		r.await(0)

		r.start("w1", "again", func(_ string, w *workertest.Worker) {
			w.OnTrain = func(stream trainingStream) error {
				if err := stream.Send(workertest.Accepted()); err != nil {
					return err
				}
				<-stream.Context().Done()
				return stream.Context().Err()
			}
		})
		r.await(1)
		stream = r.begin(r.patient(), config(8, 8))
		r.processes["w1"].Freeze()
		_, err = rest(stream)
		refused(t, err, rpc.SchedulerDomain, codes.Unavailable, reason.WorkerLost)
		require.Equal(t, map[string]string{"worker_id": "w1"}, rpc.Info(err).GetMetadata())
		require.Contains(t, status.Convert(err).Message(), "checkpoint_interval")
		require.Contains(t, status.Convert(err).Message(), "sends nothing")
		r.processes["w1"].Thaw()
		r.idle()
	})
}

func TestAWorkersWordEndsItsTrainingUnchanged(t *testing.T) {
	for name, said := range map[string]error{
		"rows that are not finite": workertest.Refusal(codes.InvalidArgument, reason.BadTrainingInput, "row 7"),
		"a worker that stops":      workertest.Refusal(codes.Unavailable, reason.WorkerStopping, "with a checkpoint"),
		"nothing":                  nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, vectors.Config{}, []string{"w1", "w2"}, func(_ string, w *workertest.Worker) {
					w.OnTrain = func(stream trainingStream) error {
						if err := stream.Send(workertest.Accepted()); err != nil {
							return err
						}
						return said
					}
				})
				_, err := rest(r.begin(r.within(), config(8, 8)))
				if said == nil {
					refused(t, err, rpc.SchedulerDomain, codes.Unavailable, reason.WorkerLost) // it has not finished
					return
				}
				refused(t, err, rpc.WorkerDomain, status.Code(said), rpc.Reason(said))
			})
		})
	}
}

func TestWhatIsNoTrainingIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vectors.Config{}, []string{"w1"}, nil)
		for name, tc := range map[string]struct {
			first, second *pb.TrainCodebookRequest
			code          codes.Code
			reason        string
		}{
			"no message":                 {nil, nil, codes.InvalidArgument, reason.InvalidArgument},
			"rows first":                 {rowsOf([]byte{1}), nil, codes.InvalidArgument, reason.InvalidArgument},
			"an empty message":           {&pb.TrainCodebookRequest{}, nil, codes.InvalidArgument, reason.InvalidArgument},
			"a first message too large":  {rowsOf(make([]byte, 5<<20)), nil, codes.ResourceExhausted, reason.MessageTooLarge},
			"a second message too large": {config(1<<20, 8), rowsOf(make([]byte, 5<<20)), codes.ResourceExhausted, reason.MessageTooLarge},
			"a second one of 20 MiB":     {config(1<<20, 8), rowsOf(make([]byte, 20<<20)), codes.ResourceExhausted, reason.MessageTooLarge},
		} {
			t.Log(name) // a bubble has no subtests
			stream, err := r.TrainCodebook(r.within())
			require.NoError(t, err)
			for _, m := range []*pb.TrainCodebookRequest{tc.first, tc.second} {
				if m != nil {
					_ = stream.Send(m)
				}
			}
			if tc.second == nil {
				require.NoError(t, stream.CloseSend())
			}
			_, err = rest(stream)
			refused(t, err, rpc.SchedulerDomain, tc.code, tc.reason)
			r.idle()
		}
		huge := config(1<<63, 1<<31)
		huge.GetConfig().Codewords = 1 << 31
		stream := r.begin(r.within(), huge)
		require.NotNil(t, stream, "who knows whether it fits is the worker")
	})
}

// Messages of a MiB fill the flow-control windows on the way, some MiB; then the sender blocks.
func TestAWorkerThatDoesNotReadHoldsItsCallerBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vectors.Config{}, []string{"w1"}, func(_ string, w *workertest.Worker) { w.OnTrain = checkpointed })
		ctx, cancel := context.WithCancel(r.within())
		stream := r.begin(ctx, config(1<<40, 8))
		var sent atomic.Int64
		done := make(chan struct{})
		go func() {
			defer close(done)
			for stream.Send(rowsOf(make([]byte, 1<<20))) == nil {
				sent.Add(1)
			}
		}()
		for last := int64(-1); sent.Load() != last; {
			last = sent.Load()
			time.Sleep(200 * time.Millisecond)
		}
		require.Less(t, sent.Load(), int64(20), "MiB")
		cancel()
		<-done
		r.idle()
	})
}

func TestACallerThatDoesNotReadHoldsItsWorkerBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent atomic.Int64
		r := newRig(t, vectors.Config{}, []string{"w1"}, func(_ string, w *workertest.Worker) {
			w.OnTrain = func(stream trainingStream) error {
				if err := stream.Send(workertest.Accepted()); err != nil {
					return err
				}
				for {
					if err := stream.Send(&pb.TrainCodebookResponse{Event: &pb.TrainCodebookResponse_Codebook{Codebook: make([]byte, 1<<20)}}); err != nil {
						return err
					}
					sent.Add(1)
				}
			}
		})
		ctx, cancel := context.WithCancel(r.within())
		r.begin(ctx, config(8, 8))
		for last := int64(-1); sent.Load() != last; {
			last = sent.Load()
			time.Sleep(200 * time.Millisecond)
		}
		require.Less(t, sent.Load(), int64(20), "MiB")
		cancel()
		r.idle()
	})
}
