package server_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/scheduler/internal/workertest"
)

// one returns a rig with one worker that serves model m.
func one(t *testing.T, w *workertest.Worker) (*rig, *workertest.Process) {
	t.Helper()
	rpctest.NoLeaks(t)
	n := workertest.NewNet()
	p := n.Start(t, "a:1", w)
	r := newRig(t, n, "a:1")
	r.await(1)
	return r, p
}

func TestGenerationIsRelayedUnchanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := workertest.New("w1", "i1", "m")
		r, _ := one(t, w)
		got, err := all(r.inference().Generate(r.within(), ask("m", 50)))
		require.NoError(t, err)
		require.Len(t, got, 52)
		require.True(t, proto.Equal(workertest.Started("w1"), got[0]))
		for i := range 50 {
			require.True(t, proto.Equal(workertest.Token(i), got[i+1]))
		}
		require.True(t, proto.Equal(workertest.Finished(50), got[51]))
		load := r.fleet.Snapshot().Members[0].Load
		require.Eventually(t, func() bool { return load.InFlight() == 0 && load.Tokens() == 0 }, hang, time.Millisecond)
	})
}

func TestUnaryMethodsAreRelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := one(t, workertest.New("w1", "i1", "m"))
		out, err := r.inference().Tokenize(r.within(), &pb.TokenizeRequest{Model: "m", Input: &pb.TokenizeRequest_Text{Text: "ab"}})
		require.NoError(t, err)
		require.Equal(t, []uint32{'a', 'b'}, out.GetTokenIds())
		_, err = r.inference().Embed(r.within(), &pb.EmbedRequest{Model: "m"})
		require.Equal(t, codes.Unimplemented, status.Code(err), "the worker's own word")
	})
}

func TestOlderWorkerGetsNoTenant(t *testing.T) {
	// A worker of the release before does not have fairness_id in Tokenize, which a scheduler with
	// keys adds to each request.
	synctest.Test(t, func(t *testing.T) {
		w := workertest.New("w1", "i1", "m")
		w.OnTokenize = func(in *pb.TokenizeRequest) error {
			if in.FairnessId != nil {
				return workertest.Refusal(codes.InvalidArgument, reason.UnknownField, "there is no fairness_id")
			}
			return nil
		}
		r, _ := one(t, w)
		in := &pb.TokenizeRequest{Model: "m", Input: &pb.TokenizeRequest_Text{Text: "ab"}, FairnessId: proto.String("a")}
		out, err := r.inference().Tokenize(r.within(), in)
		require.NoError(t, err)
		require.Equal(t, []uint32{'a', 'b'}, out.GetTokenIds())
	})
}

func TestHeadersAndTrailersAreRelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := workertest.New("w1", "i1", "m")
		release := make(chan struct{})
		w.OnGenerate = func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
			if err := stream.SendHeader(metadata.Pairs("x-worker", "w1")); err != nil {
				return err
			}
			stream.SetTrailer(metadata.Pairs("millrace-usage-bin", "\x01\x02", "endpoint-load-metrics-bin", "x"))
			<-release
			return workertest.Stream(stream, "w1", 1, 0)
		}
		r, _ := one(t, w)
		stream, err := r.inference().Generate(r.within(), ask("m", 1))
		require.NoError(t, err)
		early := make(chan metadata.MD)
		go func() {
			md, err := stream.Header()
			if err != nil {
				md = nil
			}
			early <- md
		}()
		select {
		case <-early:
			require.FailNow(t, "headers came before the first frame")
		case <-time.After(50 * time.Millisecond):
		}
		close(release)
		require.Equal(t, []string{"w1"}, (<-early).Get("x-worker"))
		_, err = all(stream, nil)
		require.NoError(t, err)
		require.Equal(t, []string{"\x01\x02"}, stream.Trailer().Get("millrace-usage-bin"))
		require.Empty(t, stream.Trailer().Get("endpoint-load-metrics-bin"))
	})
}

func TestWorkerStatusPassesUnchanged(t *testing.T) {
	want := rpc.Error{Code: codes.InvalidArgument, Domain: rpc.WorkerDomain, Reason: "INVALID_ARGUMENT",
		Message: "two values are wrong", Metadata: map[string]string{"n": "2"},
		Violations: []rpc.Violation{{Field: "sampling.top_p", Description: "must be in (0, 1]"}, {Field: "stopping.max_tokens", Description: "negative"}},
		RetryAfter: 70 * time.Millisecond}
	for name, events := range map[string]int{"before the first frame": 0, "after some frames": 3} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := workertest.New("w1", "i1", "m")
				w.OnGenerate = func(_ *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
					for i := range events {
						event := workertest.Started("w1")
						if i > 0 {
							event = workertest.Token(i - 1)
						}
						if err := stream.Send(event); err != nil {
							return err
						}
					}
					stream.SetTrailer(metadata.Pairs("millrace-usage-bin", "u"))
					return want.Err()
				}
				r, _ := one(t, w)
				stream, err := r.inference().Generate(r.within(), ask("m", 1))
				got, err := all(stream, err)
				require.Len(t, got, events)
				require.True(t, proto.Equal(want.Status().Proto(), status.Convert(err).Proto()), "%v", err)
				require.Equal(t, []string{"u"}, stream.Trailer().Get("millrace-usage-bin"))
				require.Equal(t, []string{"70"}, stream.Trailer().Get("grpc-retry-pushback-ms"))
			})
		})
	}
}

func TestOnlyTraceMetadataIsForwarded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := workertest.New("w1", "i1", "m")
		r, _ := one(t, w)
		ctx := metadata.AppendToOutgoingContext(r.within(), "x-request-id", "r7", "traceparent", "00-1-2-01",
			"authorization", "secret", "cookie", "c")
		_, err := all(r.inference().Generate(ctx, ask("m", 1)))
		require.NoError(t, err)
		seen := w.Seen()[0]
		require.Equal(t, []string{"r7"}, seen.Get("x-request-id"))
		require.Equal(t, []string{"00-1-2-01"}, seen.Get("traceparent"))
		require.Empty(t, seen.Get("authorization"))
		require.Empty(t, seen.Get("cookie"))

		named := ask("m", 1)
		named.RequestId = proto.String("mine")
		_, err = all(r.inference().Generate(r.within(), named))
		require.NoError(t, err)
		require.Equal(t, []string{"mine"}, w.Seen()[1].Get("x-request-id"))
	})
}

func TestCancelReachesTheWorker(t *testing.T) {
	for name, events := range map[string]int{"before the first frame": 0, "in mid-stream": 2} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := workertest.New("w1", "i1", "m")
				waits(w, 1)
				if events == 0 {
					w.OnGenerate = func(_ *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
						<-stream.Context().Done()
						return stream.Context().Err()
					}
				}
				r, _ := one(t, w)
				ctx, cancel := context.WithCancel(r.within())
				stream, err := r.inference().Generate(ctx, ask("m", 9))
				require.NoError(t, err)
				read(t, stream, events)
				require.Eventually(t, func() bool { return w.Running.Load() == 1 }, hang, time.Millisecond)
				cancel()
				require.Eventually(t, func() bool { return w.Running.Load() == 0 }, hang, time.Millisecond)
				require.Eventually(t, func() bool { return r.fleet.Snapshot().Members[0].Load.InFlight() == 0 }, hang, time.Millisecond)
			})
		})
	}
}

func TestLostClientCancelsItsCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := workertest.New("w1", "i1", "m")
		waits(w, 1)
		r, _ := one(t, w)
		stream, err := r.inference().Generate(r.within(), ask("m", 9))
		require.NoError(t, err)
		read(t, stream, 2)
		require.NoError(t, r.conn.Close())
		require.Eventually(t, func() bool { return w.Running.Load() == 0 }, hang, time.Millisecond)
	})
}

func TestDeadlineReachesTheWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := workertest.New("w1", "i1", "m")
		var left time.Duration
		w.OnGenerate = func(_ *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
			deadline, ok := stream.Context().Deadline()
			if !ok {
				return status.Error(codes.Internal, "no deadline")
			}
			left = time.Until(deadline)
			time.Sleep(left - 100*time.Millisecond)
			stream.SetTrailer(metadata.Pairs("millrace-usage-bin", "u"))
			return rpc.Error{Code: codes.DeadlineExceeded, Domain: rpc.WorkerDomain, Reason: "DEADLINE_EXCEEDED", Message: "out of time"}.Err()
		}
		r, _ := one(t, w)
		ctx, cancel := context.WithTimeout(context.Background(), 400*time.Millisecond)
		defer cancel()
		stream, err := r.inference().Generate(ctx, ask("m", 9))
		_, err = all(stream, err)
		require.Equal(t, codes.DeadlineExceeded, status.Code(err))
		require.Equal(t, rpc.WorkerDomain, rpc.Domain(err), "%v", err)
		require.Equal(t, []string{"u"}, stream.Trailer().Get("millrace-usage-bin"))
		require.Positive(t, left)
		require.LessOrEqual(t, left, 400*time.Millisecond)
	})
}
