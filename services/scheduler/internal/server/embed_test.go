package server_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/scheduler/internal/workertest"
)

// embedders are a worker that refuses every Embed and one that answers.
func embedders(refusal error, refused *atomic.Int64) (bad, good *workertest.Worker) {
	bad, good = workertest.New("w1", "i1", "m"), workertest.New("w2", "i2", "m")
	bad.OnEmbed = func(*pb.EmbedRequest) (*pb.EmbedResponse, error) { refused.Add(1); return nil, refusal }
	good.OnEmbed = func(in *pb.EmbedRequest) (*pb.EmbedResponse, error) {
		return &pb.EmbedResponse{Embeddings: []*pb.Embedding{{Values: []float32{float32(len(in.GetTexts()))}}}, Usage: &pb.Usage{PromptTokens: 4}}, nil
	}
	return bad, good
}

func TestEmbedMovesToAnotherWorker(t *testing.T) {
	// A worker whose engine has no hidden states, that has unloaded the model, is full, or whose
	// context is too short: the caller sees none of it.
	for why, code := range map[string]codes.Code{
		reason.NotOnThisDevice: codes.Unimplemented, reason.ModelUnloaded: codes.Unavailable, reason.WorkerFull: codes.ResourceExhausted,
		reason.PromptTooLong: codes.InvalidArgument, reason.StepFailed: codes.Internal,
	} {
		t.Run(why, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rpctest.NoLeaks(t)
				var refused atomic.Int64
				bad, good := embedders(workertest.Refusal(code, why, "not here"), &refused)
				if why == reason.PromptTooLong {
					bad.Change(func(r *pb.WorkerReport) { r.Models[0].ContextLength = 64 })
				}
				n := workertest.NewNet()
				n.Start(t, "a:1", bad)
				n.Start(t, "a:2", good)
				r := newRig(t, n, "a:1", "a:2")
				r.await(2)
				for range 20 {
					out, err := r.inference().Embed(r.within(), &pb.EmbedRequest{Model: "m", Texts: []string{"a", "b"}})
					require.NoError(t, err)
					require.Equal(t, []float32{2}, out.GetEmbeddings()[0].GetValues())
				}
				require.Positive(t, refused.Load(), "it was asked")
			})
		})
	}
}

func TestCutTextsGoToTheLongestContext(t *testing.T) {
	// A text is cut behind the same token, whichever scheduler or worker serves it.
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		var asked atomic.Int64
		short, long := embedders(workertest.Refusal(codes.Internal, reason.Internal, "too short"), &asked)
		short.Change(func(r *pb.WorkerReport) { r.Models[0].ContextLength = 64 })
		n := workertest.NewNet()
		n.Start(t, "a:1", short)
		n.Start(t, "a:2", long)
		r := newRig(t, n, "a:1", "a:2")
		r.await(2)
		for range 20 {
			_, err := r.inference().Embed(r.within(), &pb.EmbedRequest{Model: "m", Texts: []string{"a"}, Truncate: proto.Bool(true)})
			require.NoError(t, err)
		}
		require.Zero(t, asked.Load())
	})
}

func TestEmbedEndsWithTheRequestsFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		bad, _ := embedders(workertest.Refusal(codes.FailedPrecondition, reason.RerankerOnly, "call Rerank"), &asked)
		r, _ := one(t, bad)
		_, err := r.inference().Embed(r.within(), &pb.EmbedRequest{Model: "m", Texts: []string{"a"}})
		require.Equal(t, codes.FailedPrecondition, status.Code(err))
		require.Equal(t, reason.RerankerOnly, rpc.Reason(err))
		require.EqualValues(t, 1, asked.Load())
	})
}
