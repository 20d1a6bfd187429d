package cli_test

import (
	"context"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/millrace/internal/tty/ttytest"
)

// poison would clear a screen and forge a line.
const poison = ttytest.Poison

func poisoned[M proto.Message](m M) M { return ttytest.Poisoned(m) }

func TestServerTextCannotSteerTerminal(t *testing.T) {
	// Text from a server has no escape sequence, and cannot forge a line of output.
	refuse := func() error {
		return rpc.Error{
			Code: codes.Internal, Domain: poison, Reason: poison, Message: poison,
			Metadata: map[string]string{poison: poison}, Violations: []rpc.Violation{{Field: poison, Description: poison}},
		}.Err()
	}
	f := &fake{
		models:   []*pb.ModelInfo{poisoned(model("m"))},
		tokenize: bytewise,
		generate: func(in *pb.GenerateRequest, s generating) error {
			_ = s.Send(poisoned(begun(in)))
			_ = s.Send(tokens(0, 0, "text"))
			if in.GetPrompt() == "refuse" {
				return refuse()
			}
			return s.Send(poisoned(&pb.GenerateResponse{Event: &pb.GenerateResponse_Finished{Finished: &pb.Finished{
				Reason: pb.FinishReason_FINISH_REASON_STOP, Matched: &pb.Finished_Stop{Stop: "stop"}}}}))
		},
		load: func(_ *pb.LoadModelRequest, s loading) error {
			for _, e := range []*pb.LoadModelResponse{progress(pb.LoadState_LOAD_STATE_UPLOADING, 1, 2), loadResult,
				{WorkerId: "w2", Event: &pb.LoadModelResponse_Failure{Failure: &pb.LoadFailure{Code: 13, Message: "m", Reason: "R"}}}} {
				_ = s.Send(poisoned(proto.CloneOf(e)))
			}
			return refuse()
		},
		unload: func(context.Context, *pb.UnloadModelRequest) (*pb.UnloadModelResponse, error) {
			return poisoned(&pb.UnloadModelResponse{WorkerIds: []string{"w1"}}), nil
		},
		watch: func(_ *pb.WatchFleetRequest, s watching) error { return s.Send(poisoned(fleetOf(1))) },
	}
	r := serve(t, f)
	for _, args := range [][]string{
		{"models"}, {"models", "--json"}, {"generate", "-m", "m", "ok"}, {"generate", "-m", "m", "refuse"}, {"load", "m"}, {"load", "m", "--json"},
		{"unload", "m"}, {"workers"}, {"workers", "--json"}, {"tokenize", "-m", "m", poison}, {"tokenize", "--chat", "-m", "m", poison},
		{"generate", "-m", "m", "--bogus" + poison}, {poison}, {"chat", "-m", "none" + poison},
	} {
		t.Run(args[0]+args[len(args)-1], func(t *testing.T) {
			r.out, r.err = buffer{}, buffer{}
			r.run(t, args...)
			for _, c := range r.out.String() + r.err.String() {
				require.False(t, unicode.IsControl(c) && c != '\n', "%q", r.out.String()+r.err.String())
			}
			require.NotRegexp(t, `(?m)^millrace: all is well`, r.out.String()+r.err.String())
			require.NotEmpty(t, r.out.String()+r.err.String())
		})
	}
}
