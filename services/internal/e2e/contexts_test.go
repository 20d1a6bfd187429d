package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// Three workers of one class and digest, one with a context of 128 tokens and two with 512: an
// answer is the same whichever of them is chosen, lost or resumed on.
func TestUnevenContextsGiveEqualAnswers(t *testing.T) {
	t.Parallel()
	workers := map[string]*server{}
	for id, context := range map[string]uint32{"w1": 512, "w2": 128, "w3": 512} {
		workers[id] = startWorker(t, id, "--device", "sim:step=2ms,prefill=0s,decode=0s")
		loads, err := workers[id].models.LoadModel(within(t), &pb.LoadModelRequest{Model: stories, ContextLength: &context})
		for err == nil {
			_, err = loads.Recv()
		}
		require.ErrorContains(t, err, "EOF")
	}
	s := startScheduler(t, []*server{workers["w1"], workers["w2"], workers["w3"]})
	s.untilServed(t, stories, 3)
	in := ask(stories, 0)
	in.Stopping.MaxTokens = nil
	want := undisturbed(t, workers["w1"], []*pb.GenerateRequest{in})[0]
	require.EqualValues(t, len(want.ids), want.started.GetMaxTokens())
	for i := range 6 {
		got := generate(within(t), s.infer, in)
		requireSame(t, want, got, fmt.Sprint("request ", i))
		require.Equal(t, want.started.GetMaxTokens(), got.started.GetMaxTokens())
	}

	// A client that resumes by itself gets the rest of its stream, or is refused.
	before := brokenOff(t, workers["w1"], in, 10)
	again := proto.Clone(in).(*pb.GenerateRequest)
	again.ContextLength = ptr(before.started.GetPromptTokens() + before.started.GetMaxTokens())
	had := &pb.Resume{TokenIds: before.ids, TextBytes: ptr(uint64(len(before.text)))}
	require.Equal(t, fault{codes.FailedPrecondition, rpc.WorkerDomain, reason.ContextTooShort}, faultOf(resumed(t, workers["w2"], again, had).err))
	for name, on := range map[string]*server{"the scheduler": s, "another worker": workers["w3"]} {
		rest := resumed(t, on, again, had)
		require.NoError(t, rest.err, name)
		require.Equal(t, want.ids, append(before.ids[:len(before.ids):len(before.ids)], rest.ids...), name)
	}

	calls := beginAll(t, s, 6, func() *pb.GenerateRequest { return in })
	workers[calls[0].started.GetWorkerId()].kill()
	for i, c := range calls {
		requireSame(t, want, c.end(), fmt.Sprint("stream ", i))
	}
	require.Eventually(t, func() bool { return s.resumes() > 0 }, hang, 10*time.Millisecond, "none was continued: nothing is proven")
}
