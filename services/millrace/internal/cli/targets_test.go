package cli_test

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
)

func TestTargetSkipsAServerThatIsNotThere(t *testing.T) {
	var got *pb.GenerateRequest
	r := serve(t, &fake{generate: teller(&got, " upon")})
	r.target = "127.0.0.1:1," + r.target
	require.Equal(t, 0, r.run(t, "generate", "-m", "m", "Once"), r.err.String())
	require.Equal(t, " upon\n", r.out.String())
}

// The first server is lost after two tokens: the second continues the stream, and its reader sees one stream.
func TestGenerateContinuesOnAnotherTarget(t *testing.T) {
	var asked []*pb.GenerateRequest
	r := serve(t, &fake{generate: func(in *pb.GenerateRequest, s generating) error {
		asked = append(asked, in)
		if err := s.Send(begun(in)); err != nil {
			return err
		}
		if len(asked) > 1 {
			if err := s.Send(tokens(0, 2, " time")); err != nil {
				return err
			}
			return s.Send(finished(0))
		}
		for i, text := range []string{" upon", " a"} {
			if err := s.Send(tokens(0, uint32(i), text)); err != nil {
				return err
			}
		}
		return refusal(codes.Unavailable, reason.Stopping, "the scheduler is stopping")
	}})
	r.target += ",127.0.0.1:1"
	require.Equal(t, 0, r.run(t, "generate", "-m", "m", "--json", "Once"), r.err.String())
	require.Len(t, asked, 2)
	require.True(t, proto.Equal(&pb.Resume{TokenIds: []uint32{10, 11}, TextBytes: proto.Uint64(7)}, asked[1].GetResume()[0]))
	require.Equal(t, uint64(42), asked[1].GetSampling().GetSeed())
	require.Equal(t, "class", asked[1].GetExpectClassId())
	require.Equal(t, 1, strings.Count(r.out.String(), "started"))
	require.Equal(t, 3, strings.Count(r.out.String(), "tokenIds"))
}

// A server that drains refuses new calls and keeps its connection: the client goes to another server. Here
// the first connection has the server that drains, and any other connection the one that serves.
func TestGenerateLeavesAServerThatDrains(t *testing.T) {
	drains := ""
	r := serve(t, &fake{generate: func(in *pb.GenerateRequest, s generating) error {
		from, _ := peer.FromContext(s.Context())
		if drains == "" {
			drains = from.Addr.String()
		}
		if drains == from.Addr.String() {
			return refusal(codes.Unavailable, reason.WorkerDraining, "the worker drains")
		}
		return errors.Join(s.Send(begun(in)), say(s, 0, " upon"))
	}})
	_, port, err := net.SplitHostPort(r.target)
	require.NoError(t, err)
	both := r.target + ",localhost:" + port
	for name, target := range map[string]string{
		"the first": both, "the second, where the first is not there": "127.0.0.1:1," + both,
	} {
		t.Run(name, func(t *testing.T) {
			drains, r.target, r.out = "", target, buffer{}
			require.Equal(t, 0, r.run(t, "generate", "-m", "m", "-q", "Once"), r.err.String())
			require.Equal(t, " upon\n", r.out.String())
		})
	}
}

// lostAfter is a generation whose first attempt ends with the events given and the loss of the server.
func lostAfter(asked *[]*pb.GenerateRequest, first, rest []*pb.GenerateResponse) func(*pb.GenerateRequest, generating) error {
	return func(in *pb.GenerateRequest, s generating) error {
		*asked = append(*asked, in)
		events := rest
		if len(*asked) == 1 {
			events = first
		}
		for _, event := range events {
			if err := s.Send(event); err != nil {
				return err
			}
		}
		if len(*asked) == 1 {
			return refusal(codes.Unavailable, reason.Stopping, "the scheduler is stopping")
		}
		return nil
	}
}

// A server reports nothing of the prompt to a request that resumes a stream. So the command fails if it
// has not all logprobs of the prompt when the first server is lost.
func TestGenerateLosesNoLogprobsOfThePrompt(t *testing.T) {
	for name, tc := range map[string]struct {
		first []*pb.GenerateResponse
		code  int
		asked int
	}{
		"the prompt is not complete": {[]*pb.GenerateResponse{begun(nil)}, 3, 1},
		"the prompt is complete":     {[]*pb.GenerateResponse{begun(nil), promptOf(3)}, 0, 2},
	} {
		t.Run(name, func(t *testing.T) {
			var asked []*pb.GenerateRequest
			r := serve(t, &fake{generate: lostAfter(&asked, tc.first, []*pb.GenerateResponse{begun(nil), tokens(0, 0, " upon"), finished(0)})})
			r.target += ",127.0.0.1:1"
			require.Equal(t, tc.code, r.run(t, "generate", "-m", "m", "--json", "--prompt-logprobs", "0", "Once"), r.err.String())
			require.Len(t, asked, tc.asked)
		})
	}
}

// promptOf is the event of a prompt's first tokens.
func promptOf(count int) *pb.GenerateResponse {
	return &pb.GenerateResponse{Event: &pb.GenerateResponse_Prompt{Prompt: &pb.PromptTokens{Details: make([]*pb.TokenDetail, count)}}}
}

// The rate counts, for the time of the second server, only the tokens that the second server made.
func TestRateOfContinuedStreamIsNoHigher(t *testing.T) {
	first, second, last := begun(nil), begun(nil), finished(0)
	second.GetStarted().ResumedTokens = []uint32{2}
	last.GetFinished().Usage = &pb.Usage{CompletionTokens: 4}
	last.GetFinished().Timings = &pb.Timings{Decode: durationpb.New(time.Second)}
	var asked []*pb.GenerateRequest
	r := serve(t, &fake{generate: lostAfter(&asked,
		[]*pb.GenerateResponse{first, tokens(0, 0, " upon"), tokens(0, 1, " a")},
		[]*pb.GenerateResponse{second, tokens(0, 2, " time"), tokens(0, 3, "."), last})})
	r.target += ",127.0.0.1:1"
	require.Equal(t, 0, r.run(t, "generate", "-m", "m", "Once"), r.err.String())
	require.Contains(t, r.err.String(), "4 tokens, 1.00/s")
}

// A server that is alone is not asked again, and a server that refuses is not lost.
func TestGenerateGivesUpWhatNoOtherContinues(t *testing.T) {
	calls := 0
	code, why := codes.Unavailable, reason.WorkerLost
	r := serve(t, &fake{generate: func(*pb.GenerateRequest, generating) error {
		calls++
		return refusal(code, why, "no")
	}})
	alone := r.target
	require.Equal(t, 3, r.run(t, "generate", "-m", "m", "Once"))
	require.Equal(t, 1, calls)
	r.target = alone + "," + alone
	require.Equal(t, 3, r.run(t, "generate", "-m", "m", "Once"))
	require.Equal(t, 1+6, calls)
	code, why = codes.ResourceExhausted, reason.WorkersFull
	require.Equal(t, 7, r.run(t, "generate", "-m", "m", "Once"))
	require.Equal(t, 1+6+1, calls)
}

func TestTargetRefusesListsThatMakeNoSense(t *testing.T) {
	for target, says := range map[string]string{
		"127.0.0.1:1,,127.0.0.1:2":       "an address is empty",
		"127.0.0.1:1,dns:///here:2":      "give it alone",
		"127.0.0.1:1,there.example:7070": `"there.example:7070": would be dialled in plaintext`,
		"127.0.0.1:1,127.0.0.1":          "want host:port",
	} {
		r := &rig{target: target}
		require.Equal(t, 2, r.run(t, "models"), target)
		require.Contains(t, r.err.String(), says)
	}
}
