package server_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/scheduler/internal/workertest"
)

func TestUnroutableRequestsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		n := workertest.NewNet()
		a, b := workertest.New("w1", "i", "m", "x"), workertest.New("w2", "i", "m")
		a.Change(func(r *pb.WorkerReport) {
			r.Models[1].ModelDigest = "other"
			r.Files = append(r.Files, &pb.ModelFile{Name: "disk"})
		})
		b.Change(func(r *pb.WorkerReport) {
			r.Models = append(r.Models, workertest.Model("x"))
		})
		n.Start(t, "a:1", a)
		n.Start(t, "b:1", b)
		r := newRig(t, n, "a:1", "b:1")
		r.await(2)
		pinned := ask("x", 1)
		pinned.ExpectModelDigest = proto.String("third")
		classed := ask("m", 1)
		classed.ExpectClassId = proto.String("gpu")
		for name, tc := range map[string]struct {
			in     *pb.GenerateRequest
			code   codes.Code
			reason string
		}{
			"no model named":                      {ask("", 1), codes.InvalidArgument, reason.InvalidArgument},
			"a model that nobody has":             {ask("nope", 1), codes.NotFound, reason.UnknownModel},
			"a model name of 256 bytes":           {ask(strings.Repeat("m", 256), 1), codes.InvalidArgument, reason.InvalidArgument},
			"a model name of 255 bytes":           {ask(strings.Repeat("m", 255), 1), codes.NotFound, reason.UnknownModel},
			"a path for a model":                  {ask("../../etc/passwd", 1), codes.InvalidArgument, reason.InvalidArgument},
			"a model on disk":                     {ask("disk", 1), codes.FailedPrecondition, reason.ModelNotLoaded},
			"a name with two digests":             {ask("x", 1), codes.FailedPrecondition, reason.AmbiguousModel},
			"a digest that nobody serves":         {pinned, codes.FailedPrecondition, reason.DigestMismatch},
			"a class of worker that is not there": {classed, codes.FailedPrecondition, reason.ClassMismatch},
		} {
			t.Log(name) // a bubble has no subtests
			_, err := all(r.inference().Generate(r.within(), tc.in))
			require.Equal(t, tc.code, status.Code(err), "%v", err)
			require.Equal(t, tc.reason, rpc.Reason(err))
			require.Equal(t, rpc.SchedulerDomain, rpc.Domain(err))
		}
		_, err := r.inference().Tokenize(r.within(), &pb.TokenizeRequest{Model: "nope"})
		require.Equal(t, reason.UnknownModel, rpc.Reason(err))
	})
}

func TestMalformedMessagesAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := one(t, workertest.New("w1", "i1", "m"))
		unknown := protowire.AppendVarint(protowire.AppendTag(nil, 900, protowire.VarintType), 1)
		model := protowire.AppendString(protowire.AppendTag(nil, 2, protowire.BytesType), "m")
		for name, tc := range map[string]struct {
			raw    []byte
			code   codes.Code
			reason string
		}{
			"an unknown field":       {slices.Concat(model, unknown), codes.InvalidArgument, reason.UnknownField},
			"text that is not UTF-8": {protowire.AppendBytes(protowire.AppendTag(slices.Clone(model), 4, protowire.BytesType), []byte{0xff}), codes.InvalidArgument, reason.MalformedMessage},
			"random bytes":           {[]byte{0xff, 0xfe, 0x01}, codes.InvalidArgument, reason.MalformedMessage},
			"100 MB":                 {protowire.AppendBytes(protowire.AppendTag(slices.Clone(model), 4, protowire.BytesType), make([]byte, 100<<20)), codes.ResourceExhausted, reason.MessageTooLarge},
		} {
			t.Log(name) // a bubble has no subtests
			stream, err := r.conn.NewStream(r.within(), &grpc.StreamDesc{ServerStreams: true},
				pb.InferenceService_Generate_FullMethodName, grpc.ForceCodecV2(rpc.FrameCodec()))
			require.NoError(t, err)
			_ = stream.SendMsg(&rpc.Frame{Data: mem.BufferSlice{mem.SliceBuffer(tc.raw)}})
			_ = stream.CloseSend()
			err = stream.RecvMsg(&rpc.Frame{})
			require.Equal(t, tc.code, status.Code(err), "%v", err)
			require.Equal(t, tc.reason, rpc.Reason(err))
			require.Equal(t, rpc.SchedulerDomain, rpc.Domain(err))
		}
		_, err := all(r.inference().Generate(r.within(), ask("m", 1)))
		require.NoError(t, err)
	})
}

func TestLargePromptIsRelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := workertest.New("w1", "i1", "m")
		var got string
		w.OnGenerate = func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
			got = in.GetPrompt()
			return workertest.Stream(stream, "w1", 1, 0)
		}
		r, _ := one(t, w)
		in := ask("m", 1)
		in.Input = &pb.GenerateRequest_Prompt{Prompt: strings.Repeat("0123456789", 800_000)}
		_, err := all(r.inference().Generate(r.within(), in))
		require.NoError(t, err)
		require.Equal(t, sha256.Sum256([]byte(in.GetPrompt())), sha256.Sum256([]byte(got)), "%d bytes came", len(got))
	})
}

func TestThousandStreamsThroughTwoSchedulers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		n := workertest.NewNet()
		var together sync.WaitGroup
		together.Add(1000)
		for i := range 2 {
			w := workertest.New(fmt.Sprintf("w%d", i), "i", "m")
			w.OnGenerate = func(_ *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
				together.Done()
				together.Wait() // every stream is open before any goes on
				return workertest.Stream(stream, "w", 20, 0)
			}
			n.Start(t, fmt.Sprintf("w%d:1", i), w)
		}
		rigs := []*rig{newRigWith(t, n, hang, "w0:1", "w1:1"), newRigWith(t, n, hang, "w0:1", "w1:1")}
		failures := make(chan error, 1000)
		for _, r := range rigs {
			r.await(2)
		}
		var wait sync.WaitGroup
		for i := range 1000 {
			r := rigs[i%2]
			ctx := r.within()
			wait.Go(func() {
				got, err := all(r.inference().Generate(ctx, ask("m", 20)))
				if err == nil && len(got) != 22 {
					err = fmt.Errorf("%d events", len(got))
				}
				failures <- err
			})
		}
		wait.Wait()
		for range 1000 {
			require.NoError(t, <-failures)
		}
	})
}

func TestSlowConsumersApplyBackpressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := workertest.New("w1", "i1", "m")
		sent := make(chan int, 1<<20)
		w.OnGenerate = func(_ *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
			if err := stream.Send(workertest.Started("w1")); err != nil {
				return err
			}
			for i := 0; ; i++ {
				if err := stream.Send(workertest.Token(i)); err != nil {
					return err
				}
				sent <- i
			}
		}
		r, _ := one(t, w)
		ctx, cancel := context.WithCancel(r.within())
		_, err := r.inference().Generate(ctx, ask("m", 1<<20))
		require.NoError(t, err)
		for last := -1; len(sent) != last || last == 0; { // until nothing more is sent for a while
			last = len(sent)
			time.Sleep(200 * time.Millisecond)
		}
		require.Less(t, len(sent), 100_000, "events of some 20 bytes fill windows of some 64 KiB")
		cancel()
		require.Eventually(t, func() bool { return w.Running.Load() == 0 }, hang, time.Millisecond)
	})
}

func TestWorkersAtTheirBoundAreFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := workertest.New("w1", "i1", "m")
		waits(w, 0)
		rpctest.NoLeaks(t)
		n := workertest.NewNet()
		n.Start(t, "a:1", w)
		r := newRig(t, n, "a:1")
		r.await(1)
		for range maxInFlight - 1 {
			r.fleet.Snapshot().Members[0].Load.Begin(0, 0)
		}
		ctx, cancel := context.WithCancel(r.within())
		defer cancel()
		stream, err := r.inference().Generate(ctx, ask("m", 1))
		require.NoError(t, err)
		read(t, stream, 1)
		for range maxQueue {
			_, err := r.inference().Generate(ctx, ask("m", 1))
			require.NoError(t, err)
		}
		require.Eventually(t, func() bool {
			all := r.places.Stats()
			return len(all) == 1 && all[0].Waiting == maxQueue
		}, hang, time.Millisecond)
		for name, resume := range map[string][]*pb.Resume{
			"a request": nil,
			"one that says that it resumes: only this process knows which streams have had their turn": {{TokenIds: []uint32{1}}},
		} {
			in := ask("m", 2)
			in.Resume = resume
			refused, err := r.inference().Generate(ctx, in)
			_, err = all(refused, err)
			require.Equal(t, codes.ResourceExhausted, status.Code(err), name)
			require.Equal(t, reason.WorkersFull, rpc.Reason(err), name)
			require.Equal(t, "20", rpc.Info(err).GetMetadata()["waiting"], name)
			require.Positive(t, rpc.RetryAfter(err), name)
			require.NotEmpty(t, refused.Trailer().Get("grpc-retry-pushback-ms"), name)
		}
	})
}

func TestConcurrentRequestsKeepTheBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := workertest.New("w1", "i1", "m")
		waits(w, 0)
		r, _ := one(t, w)
		const places = 3
		load := r.fleet.Snapshot().Members[0].Load
		for range maxInFlight - places {
			load.Begin(0, 0)
		}
		ctx, cancel := context.WithCancel(r.within())
		var begun, calls sync.WaitGroup
		outcomes := make(chan error, 200)
		begun.Add(1)
		for range cap(outcomes) {
			calls.Go(func() {
				begun.Wait()
				stream, err := r.inference().Generate(ctx, ask("m", 1))
				if err == nil {
					_, err = stream.Recv()
				}
				outcomes <- err
			})
		}
		begun.Done()
		taken := 0
		for range cap(outcomes) - maxQueue { // those in the queue have none
			if err := <-outcomes; err == nil {
				taken++
			} else {
				require.Equal(t, reason.WorkersFull, rpc.Reason(err), "%v", err)
			}
		}
		require.Equal(t, places, taken)
		cancel()
		calls.Wait()
	})
}

func TestWaitingRequestsAreBoundedByBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := workertest.New("w1", "i1", "m")
		w.Change(func(report *pb.WorkerReport) { report.Models[0].Loaded = &pb.LoadResult{MaxSequences: 1} })
		waits(w, 0)
		r, _ := one(t, w)
		ctx, cancel := context.WithCancel(r.within())
		defer cancel()
		for range 2 { // the place, and a spare one
			stream, err := r.inference().Generate(r.within(), ask("m", 1)) // longer than the others wait
			require.NoError(t, err)
			read(t, stream, 1)
		}
		large := ask("m", 1)
		large.Input = &pb.GenerateRequest_Prompt{Prompt: strings.Repeat("x", maxWaitingBytes/4)}
		for i := range 3 {
			_, err := r.inference().Generate(ctx, large)
			require.NoError(t, err)
			require.Eventually(t, func() bool { return r.places.Stats()[0].Waiting == i+1 }, hang, time.Millisecond)
		}
		_, err := all(r.inference().Generate(ctx, large))
		require.Equal(t, reason.TooManyBytesWaiting, rpc.Reason(err), "%v", err)
		require.NotEmpty(t, rpc.Info(err).GetMetadata()["waiting_bytes"])
		cancel()
		require.Eventually(t, func() bool { return r.places.Stats()[0].Waiting == 0 }, hang, time.Millisecond)
		require.EqualValues(t, 2, w.Generations.Load(), "none of them reached the worker")
	})
}

func TestHeldRequestsAreBoundedByBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := workertest.New("w1", "i1", "m")
		answer := make(chan struct{})
		w.OnGenerate = func(_ *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
			rpc.ReleaseRequest(stream.Context()) // the test is about the scheduler's copy
			<-answer
			if err := stream.Send(workertest.Started("w1")); err != nil {
				return err
			}
			<-stream.Context().Done()
			return stream.Context().Err()
		}
		r, _ := one(t, w)
		large := ask("m", 1)
		large.Input = &pb.GenerateRequest_Prompt{Prompt: strings.Repeat("x", maxWaitingBytes/4)}
		ctx, cancel := context.WithCancel(r.within())
		defer cancel()
		var streams []grpc.ServerStreamingClient[pb.GenerateResponse]
		for i := range 3 {
			stream, err := r.inference().Generate(ctx, large)
			require.NoError(t, err)
			streams = append(streams, stream)
			require.Eventually(t, func() bool { return w.Running.Load() == int64(i+1) }, hang, time.Millisecond)
		}
		_, err := all(r.inference().Generate(ctx, large))
		require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
		require.Equal(t, reason.TooManyBytesWaiting, rpc.Reason(err))
		require.Equal(t, rpc.SchedulerDomain, rpc.Domain(err))
		close(answer)
		for _, stream := range streams {
			read(t, stream, 1)
		}
		_, err = all(r.inference().Generate(ctx, large))
		require.Equal(t, reason.TooManyBytesWaiting, rpc.Reason(err), "a stream that has begun may need its request again")
		cancel()
		require.Eventually(t, func() bool { return w.Running.Load() == 0 }, hang, time.Millisecond)
		require.Eventually(t, func() bool {
			stream, err := r.inference().Generate(r.within(), large)
			require.NoError(t, err)
			_, err = stream.Recv()
			return err == nil
		}, hang, time.Millisecond)
	})
}
