package vectors_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/vectors"
	"github.com/millrace/millrace/services/scheduler/internal/workertest"
)

func TestEncodeAndDecodeRowsOfAnySize(t *testing.T) {
	// Rows of any size come back as their codes, and codes as rows.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vectors.Config{}, []string{"w1", "w2"}, serving)
		for _, n := range []int{0, 1, 255, 70_001, 4<<20 - 64} {
			in := rows(n, 3)
			out, err := r.Encode(r.within(), &pb.EncodeRequest{Codebook: "k", ElementType: pb.ElementType_ELEMENT_TYPE_U8, Rows: in})
			require.NoError(t, err, n)
			require.Equal(t, workertest.Codes(in), append([]byte{}, out.GetCodes()...), n)
			require.Equal(t, "d-k", out.GetCodebookDigest())
			back, err := r.Decode(r.within(), &pb.DecodeRequest{Codebook: "k", ExpectCodebookDigest: proto.String("d-k"), Codes: out.GetCodes()})
			require.NoError(t, err, n)
			require.Equal(t, in, append([]byte{}, back.GetRows()...), n)
		}
		r.idle()
	})
}

func TestACallWithoutAWorkerSaysWhatIsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vectors.Config{}, []string{"w1", "w2"}, func(id string, w *workertest.Worker) {
			w.WithVectors("k", "two")
			w.Change(func(report *pb.WorkerReport) {
				report.Vectors.Codebooks[1].CodebookDigest = id
				report.Vectors.Codebooks = append(report.Vectors.Codebooks,
					&pb.CodebookInfo{Name: "disk", State: pb.CodebookState_CODEBOOK_STATE_ON_DISK},
					&pb.CodebookInfo{Name: "out", State: pb.CodebookState_CODEBOOK_STATE_FAILED, Problem: "bits"})
			})
		})
		for name, tc := range map[string]struct {
			codebook, digest string
			code             codes.Code
			reason           string
		}{
			"no name":                   {"", "", codes.InvalidArgument, reason.InvalidArgument},
			"a path for a name":         {"../k", "", codes.InvalidArgument, reason.InvalidArgument},
			"a name that nobody has":    {"nope", "", codes.NotFound, reason.UnknownCodebook},
			"one on disk":               {"disk", "", codes.NotFound, reason.CodebookNotLoaded},
			"one out of service":        {"out", "", codes.Unavailable, reason.CodebookOutOfService},
			"a name with two digests":   {"two", "", codes.FailedPrecondition, reason.AmbiguousCodebook},
			"a digest that nobody has":  {"k", "other", codes.FailedPrecondition, reason.CodebookDigestMismatch},
			"a digest and no such name": {"nope", "d-k", codes.NotFound, reason.UnknownCodebook},
		} {
			t.Log(name) // a bubble has no subtests
			in := &pb.EncodeRequest{Codebook: tc.codebook}
			if tc.digest != "" {
				in.ExpectCodebookDigest = &tc.digest
			}
			_, err := r.Encode(r.within(), in)
			refused(t, err, rpc.SchedulerDomain, tc.code, tc.reason)
			_, err = r.Decode(r.within(), &pb.DecodeRequest{Codebook: tc.codebook, ExpectCodebookDigest: in.ExpectCodebookDigest})
			refused(t, err, rpc.SchedulerDomain, tc.code, tc.reason)
		}
		out, err := r.Encode(r.within(), &pb.EncodeRequest{Codebook: "two", ExpectCodebookDigest: proto.String("w2"), Rows: []byte{1}})
		require.NoError(t, err)
		require.Equal(t, "w2", out.GetCodebookDigest())
	})
}

func TestMalformedMessagesAreRefused(t *testing.T) {
	// Malformed messages are refused, and the scheduler continues to serve.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vectors.Config{}, []string{"w1"}, serving)
		name := slices.Clip(protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "k"))
		long := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), make([]byte, 5000))
		for what, tc := range map[string]struct {
			raw    []byte
			domain string
			code   codes.Code
			reason string
		}{
			"random bytes":                {[]byte{0xff, 0xfe, 0x01}, rpc.SchedulerDomain, codes.InvalidArgument, reason.MalformedMessage},
			"a length beyond the end":     {[]byte{0x0a, 0x7f, 'k'}, rpc.SchedulerDomain, codes.InvalidArgument, reason.MalformedMessage},
			"a length of 2^63":            {[]byte{0x0a, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01}, rpc.SchedulerDomain, codes.InvalidArgument, reason.MalformedMessage},
			"field 0":                     {[]byte{0x00, 0x01}, rpc.SchedulerDomain, codes.InvalidArgument, reason.MalformedMessage},
			"a group":                     {append([]byte{0x0b}, name...), rpc.SchedulerDomain, codes.InvalidArgument, reason.MalformedMessage},
			"a number for a name":         {[]byte{0x08, 0x01}, rpc.SchedulerDomain, codes.InvalidArgument, reason.MalformedMessage},
			"a name that is not UTF-8":    {[]byte{0x0a, 0x01, 0xff}, rpc.SchedulerDomain, codes.InvalidArgument, reason.MalformedMessage},
			"a name of 5000 bytes":        {long, rpc.SchedulerDomain, codes.InvalidArgument, reason.MalformedMessage},
			"more than 4 MiB":             {append(name, make([]byte, 4<<20)...), rpc.SchedulerDomain, codes.ResourceExhausted, reason.MessageTooLarge},
			"more than 16 MiB":            {append(name, make([]byte, 17<<20)...), rpc.SchedulerDomain, codes.ResourceExhausted, reason.MessageTooLarge},
			"a field of a later contract": {slices.Concat(name, protowire.AppendVarint(protowire.AppendTag(nil, 900, protowire.VarintType), 1)), rpc.WorkerDomain, codes.InvalidArgument, reason.UnknownField},
			"rows that are a number":      {append(name, 0x20, 0x01), rpc.WorkerDomain, codes.InvalidArgument, reason.UnknownField},
		} {
			t.Log(what) // a bubble has no subtests
			stream, err := r.conn.NewStream(r.within(), &grpc.StreamDesc{}, pb.VectorService_Encode_FullMethodName, grpc.ForceCodecV2(rpc.FrameCodec()))
			require.NoError(t, err)
			_ = stream.SendMsg(&rpc.Frame{Data: mem.BufferSlice{mem.SliceBuffer(append([]byte{}, tc.raw...))}})
			refused(t, stream.RecvMsg(&rpc.Frame{}), tc.domain, tc.code, tc.reason)
		}
		_, err := r.Encode(r.within(), &pb.EncodeRequest{Codebook: "k"})
		require.NoError(t, err)
		r.idle()
	})
}

func TestKilledWorkersLoseNoChunk(t *testing.T) {
	// Workers that are killed during encode lose no chunk.
	synctest.Test(t, func(t *testing.T) {
		ids := []string{"w1", "w2", "w3"}
		// A chunk takes a while, so that some are under way at every kill, and because reconnects
		// wait for the bubble's time to pass.
		busy := func(id string, w *workertest.Worker) {
			serving(id, w)
			w.OnEncode = func(context.Context, *pb.EncodeRequest) error {
				time.Sleep(time.Millisecond)
				return nil
			}
		}
		r := newRig(t, vectors.Config{FailoverWait: hang, Grace: hang}, ids, busy)
		const callers = 8
		var mu sync.Mutex
		moved := sync.NewCond(&mu) // one of the fields guarded by mu has changed
		var back [callers]int      // guarded by mu; chunks that have come back to each caller
		var failure error          // guarded by mu
		over := false              // guarded by mu
		var wait sync.WaitGroup
		for caller := range callers {
			ctx := r.patient()
			wait.Go(func() {
				for chunk := 0; ; chunk++ {
					in := rows(10_000+chunk, byte(caller))
					out, err := r.Encode(ctx, &pb.EncodeRequest{Codebook: "k", Rows: in})
					if err == nil && !bytes.Equal(out.GetCodes(), workertest.Codes(in)) {
						err = fmt.Errorf("chunk %d of caller %d has other codes", chunk, caller)
					}
					mu.Lock()
					back[caller]++
					failure = cmp.Or(failure, err)
					ends := over || failure != nil
					moved.Signal()
					mu.Unlock()
					if ends {
						return
					}
				}
			})
		}
		// next waits until n chunks have come back, at least one of them to each caller: so no
		// call is under way from one kill to the next, and none loses more workers than a call may.
		next := func(n int) {
			mu.Lock()
			defer mu.Unlock()
			before := back
			for failure == nil {
				sum, least := 0, n
				for caller := range callers {
					came := back[caller] - before[caller]
					sum, least = sum+came, min(least, came)
				}
				if sum >= n && least > 0 {
					return
				}
				moved.Wait()
			}
		}
		for round, id := range []string{"w1", "w2", "w3", "w1"} {
			next(40)
			r.processes[id].Kill()
			next(40)
			r.start(id, fmt.Sprint("again", round), busy)
		}
		next(160)
		mu.Lock()
		over = true
		mu.Unlock()
		wait.Wait()
		require.NoError(t, failure)
		r.idle()
	})
}

func TestAWorkerThatCannotIsPassedOver(t *testing.T) {
	for name, tc := range map[string]struct {
		code   codes.Code
		reason string
		ends   bool // the caller gets it
	}{
		"it stops":                     {codes.Unavailable, reason.WorkerStopping, false},
		"it is full":                   {codes.ResourceExhausted, reason.WorkerFull, false},
		"it has unloaded the codebook": {codes.NotFound, reason.UnknownCodebook, false},
		"it has another one now":       {codes.FailedPrecondition, reason.CodebookDigestMismatch, false},
		"it found a flipped bit":       {codes.DataLoss, reason.ResidentCodebookDiffers, false},
		"its device failed":            {codes.Internal, reason.DeviceFailed, false},
		"the rows are wrong":           {codes.InvalidArgument, reason.InvalidArgument, true},
		"the message is too large":     {codes.ResourceExhausted, reason.MessageTooLarge, true},
		"the call's time is over":      {codes.DeadlineExceeded, reason.DeadlineExceeded, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, vectors.Config{}, []string{"w1", "w2", "w3"}, func(id string, w *workertest.Worker) {
					w.WithVectors("k")
					if id != "w3" || tc.ends {
						w.OnEncode = func(context.Context, *pb.EncodeRequest) error { return workertest.Refusal(tc.code, tc.reason, "said") }
					}
				})
				asked := func() int64 {
					return r.workers["w1"].Encodes.Load() + r.workers["w2"].Encodes.Load() + r.workers["w3"].Encodes.Load()
				}
				for calls := int64(1); ; calls++ {
					_, err := r.Encode(r.within(), &pb.EncodeRequest{Codebook: "k", Rows: []byte{1}})
					if tc.ends {
						refused(t, err, rpc.WorkerDomain, tc.code, tc.reason)
						require.Equal(t, calls, asked())
					} else {
						require.NoError(t, err)
					}
					if calls >= 5 && (tc.ends || asked() > calls) { // the first worker is drawn at random
						break
					}
					require.Less(t, calls, int64(1000), "nobody was passed over")
				}
			})
		})
	}
}

func TestACallThatNoWorkerSurvivesEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ids := []string{"w1", "w2", "w3", "w4", "w5"}
		r := newRig(t, vectors.Config{FailoverWait: hang}, ids, func(_ string, w *workertest.Worker) {
			w.WithVectors("k")
			w.OnEncode = func(context.Context, *pb.EncodeRequest) error {
				return workertest.Refusal(codes.Internal, reason.DeviceFailed, "gone")
			}
		})
		_, err := r.Encode(r.patient(), &pb.EncodeRequest{Codebook: "k"})
		refused(t, err, rpc.WorkerDomain, codes.Internal, reason.DeviceFailed)
		sum := int64(0)
		for _, w := range r.workers {
			sum += w.Encodes.Load()
		}
		require.EqualValues(t, 3, sum)
	})
}

func TestPieceEndsAtDeadlineOrFailoverWait(t *testing.T) {
	// A call that finds no other worker ends at its deadline or after FailoverWait.
	synctest.Test(t, func(t *testing.T) {
		stops := func(_ string, w *workertest.Worker) {
			w.WithVectors("k")
			w.OnEncode = func(context.Context, *pb.EncodeRequest) error {
				return workertest.Refusal(codes.Unavailable, reason.WorkerStopping, "stopping")
			}
		}
		r := newRig(t, vectors.Config{FailoverWait: 50 * time.Millisecond}, []string{"w1", "w2"}, stops)
		_, err := r.Encode(r.patient(), &pb.EncodeRequest{Codebook: "k"})
		refused(t, err, rpc.WorkerDomain, codes.Unavailable, reason.WorkerStopping)
		require.Greater(t, r.workers["w1"].Encodes.Load(), int64(1), "it is asked again")
		r.idle()
	})
}

func TestAFullFleetIsRefusedWithTheTimeToComeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vectors.Config{FailoverWait: hang}, []string{"w1"}, func(_ string, w *workertest.Worker) {
			w.WithVectors("k")
			w.OnEncode = func(context.Context, *pb.EncodeRequest) error {
				return rpc.Error{Code: codes.ResourceExhausted, Domain: rpc.WorkerDomain, Reason: reason.WorkerFull, Message: "full",
					RetryAfter: time.Second}.Err()
			}
		})
		_, err := r.Encode(r.patient(), &pb.EncodeRequest{Codebook: "k"})
		refused(t, err, rpc.WorkerDomain, codes.ResourceExhausted, reason.WorkerFull)
		require.Equal(t, time.Second, rpc.RetryAfter(err))
	})
}

func TestCallsAreBoundedByCountAndBytesOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		r := newRig(t, vectors.Config{MaxCalls: 4, MaxBytes: 8 << 20}, []string{"w1"}, func(_ string, w *workertest.Worker) {
			w.WithVectors("k")
			w.OnEncode = func(ctx context.Context, _ *pb.EncodeRequest) error {
				select {
				case <-hold:
				case <-ctx.Done():
				}
				return nil
			}
		})
		var wait sync.WaitGroup
		outcomes := make(chan error, 4)
		ask := func(bytes, expect int) {
			t.Helper()
			ctx := r.within()
			wait.Go(func() {
				_, err := r.Encode(ctx, &pb.EncodeRequest{Codebook: "k", Rows: make([]byte, bytes)})
				outcomes <- err
			})
			require.Eventually(t, func() bool { return r.workers["w1"].Encodes.Load() == int64(expect) }, hang, time.Millisecond)
		}
		ask(3<<20, 1)
		ask(3<<20, 2)
		_, err := r.Encode(r.within(), &pb.EncodeRequest{Codebook: "k", Rows: make([]byte, 3<<20)})
		refused(t, err, rpc.SchedulerDomain, codes.ResourceExhausted, reason.TooManyBytesWaiting)
		require.Positive(t, rpc.RetryAfter(err))
		require.Equal(t, fmt.Sprint(8<<20), rpc.Info(err).GetMetadata()["max_waiting_bytes"])
		ask(1, 3)
		ask(1, 4)
		_, err = r.Encode(r.within(), &pb.EncodeRequest{Codebook: "k"})
		refused(t, err, rpc.SchedulerDomain, codes.ResourceExhausted, reason.TooManyVectorCalls)
		require.Positive(t, rpc.RetryAfter(err))
		require.Zero(t, r.fleet.Snapshot().Members[0].Load.InFlight(), "no place of a token stream is taken")
		close(hold)
		wait.Wait()
		for range 4 {
			require.NoError(t, <-outcomes)
		}
		r.idle()
	})
}

func TestACallerThatCancelsEndsItsCallAtTheWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan struct{}, 1)
		var cancel context.CancelFunc
		r := newRig(t, vectors.Config{}, []string{"w1"}, func(_ string, w *workertest.Worker) {
			w.WithVectors("k")
			w.OnEncode = func(ctx context.Context, _ *pb.EncodeRequest) error {
				cancel()
				<-ctx.Done()
				ended <- struct{}{}
				return ctx.Err()
			}
		})
		var ctx context.Context
		ctx, cancel = context.WithCancel(r.within())
		defer cancel()
		_, err := r.Encode(ctx, &pb.EncodeRequest{Codebook: "k"})
		require.Error(t, err)
		select {
		case <-ended:
		case <-time.After(hang):
			require.Fail(t, "the worker goes on")
		}
		require.EqualValues(t, 1, r.workers["w1"].Encodes.Load())
		r.idle()
	})
}

func TestCodebookOnDiskIsLoadedOnce(t *testing.T) {
	// A codebook on disk is loaded once for all calls that want it.
	synctest.Test(t, func(t *testing.T) {
		var gate sync.WaitGroup
		gate.Add(1)
		r := newRig(t, vectors.Config{OnDemand: hang}, []string{"w1", "w2"}, func(id string, w *workertest.Worker) {
			w.WithVectors("k")
			w.Change(func(report *pb.WorkerReport) {
				report.Vectors.Codebooks[0].State = pb.CodebookState_CODEBOOK_STATE_ON_DISK
			})
			w.OnLoadCodebook = func(context.Context, *pb.LoadCodebookRequest) error { gate.Wait(); return nil }
		})
		var wait sync.WaitGroup
		outcomes := make(chan error, 20)
		for range cap(outcomes) {
			ctx := r.within()
			wait.Go(func() {
				_, err := r.Encode(ctx, &pb.EncodeRequest{Codebook: "k", Rows: []byte{1}})
				outcomes <- err
			})
		}
		require.Eventually(t, func() bool { calls, _ := r.vectors.UnderWay(); return calls == 20 }, hang, time.Millisecond)
		gate.Done()
		wait.Wait()
		for range cap(outcomes) {
			require.NoError(t, <-outcomes)
		}
		require.EqualValues(t, 1, r.workers["w1"].CodebookLoads.Load()+r.workers["w2"].CodebookLoads.Load())
	})
}

// As with models: an operator drains a worker on purpose, but a worker that is lost may come back
// with its copy.
func TestCodebookIsLoadedElsewhereWhenLost(t *testing.T) {
	for name, gone := range map[string]func(r *rig){
		"drained": func(r *rig) {
			r.workers["w1"].Change(func(report *pb.WorkerReport) { report.State = pb.WorkerState_WORKER_STATE_DRAINING })
		},
		"killed": func(r *rig) { r.processes["w1"].Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, vectors.Config{OnDemand: hang, Grace: 100 * time.Millisecond}, []string{"w1", "w2", "w3"}, func(id string, w *workertest.Worker) {
					w.WithVectors("k")
					w.Change(func(report *pb.WorkerReport) {
						b := report.GetVectors().GetCodebooks()[0]
						if id != "w1" {
							b.State = pb.CodebookState_CODEBOOK_STATE_ON_DISK
						}
						if id == "w3" {
							b.CodebookDigest = "of another one"
						}
					})
				})
				served, err := r.Encode(r.within(), &pb.EncodeRequest{Codebook: "k", Rows: []byte{1}})
				require.NoError(t, err)
				require.Zero(t, r.workers["w2"].CodebookLoads.Load())
				gone(r)
				require.Eventually(t, func() bool {
					for _, w := range r.fleet.Snapshot().Route.Workers {
						if w.ID == "w1" {
							return !w.Serves()
						}
					}
					return false
				}, hang, time.Millisecond)
				out, err := r.Encode(r.patient(), &pb.EncodeRequest{Codebook: "k", Rows: []byte{1}})
				require.NoError(t, err)
				require.Equal(t, served.GetCodebookDigest(), out.GetCodebookDigest())
				require.EqualValues(t, 1, r.workers["w2"].CodebookLoads.Load())
				require.Zero(t, r.workers["w3"].CodebookLoads.Load())
				r.idle()
			})
		})
	}
}

func TestReturningCopyIsNotLoadedElsewhere(t *testing.T) {
	// A copy that comes back within the grace is not loaded elsewhere.
	synctest.Test(t, func(t *testing.T) {
		change := func(id string, w *workertest.Worker) {
			w.WithVectors("k")
			if id == "w2" {
				onDisk(id, w)
			}
		}
		r := newRig(t, vectors.Config{OnDemand: hang, Grace: hang}, []string{"w1", "w2"}, change)
		r.processes["w1"].Kill()
		r.await(1)
		ended := make(chan error, 1)
		ctx := r.patient()
		go func() {
			_, err := r.Encode(ctx, &pb.EncodeRequest{Codebook: "k", Rows: []byte{1}})
			ended <- err
		}()
		require.Eventually(t, func() bool { calls, _ := r.vectors.UnderWay(); return calls == 1 }, hang, time.Millisecond)
		r.start("w1", "j", change)
		require.NoError(t, <-ended)
		require.Zero(t, r.workers["w2"].CodebookLoads.Load())
	})
}

func TestFailedLoadOnDemandPauses(t *testing.T) {
	// A load on demand that failed is not tried again at once.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vectors.Config{OnDemand: hang}, []string{"w1"}, func(_ string, w *workertest.Worker) {
			w.WithVectors("k")
			w.Change(func(report *pb.WorkerReport) {
				report.Vectors.Codebooks[0].State = pb.CodebookState_CODEBOOK_STATE_ON_DISK
			})
			w.OnLoadCodebook = func(context.Context, *pb.LoadCodebookRequest) error {
				return workertest.Refusal(codes.FailedPrecondition, reason.InvalidCodebookFile, "damaged")
			}
		})
		for range 3 {
			_, err := r.Encode(r.within(), &pb.EncodeRequest{Codebook: "k"})
			refused(t, err, rpc.WorkerDomain, codes.FailedPrecondition, reason.InvalidCodebookFile)
			require.Positive(t, rpc.RetryAfter(err))
		}
		require.EqualValues(t, 1, r.workers["w1"].CodebookLoads.Load())
	})
}
