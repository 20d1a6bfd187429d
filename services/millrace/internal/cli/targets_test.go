package cli_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

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
	require.Equal(t, 1+4, calls)
	code, why = codes.ResourceExhausted, reason.WorkersFull
	require.Equal(t, 7, r.run(t, "generate", "-m", "m", "Once"))
	require.Equal(t, 1+4+1, calls)
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
