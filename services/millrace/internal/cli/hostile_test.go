package cli_test

import (
	"context"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

// poison would clear a screen and forge a line.
const poison = "\x1b[2J\nmillrace: all is well\r\x07\u009b"

// poisoned is m with poison in every text, in messages below it too.
func poisoned[M proto.Message](m M) M {
	poisonMessage(m.ProtoReflect())
	return m
}

func poisonMessage(m protoreflect.Message) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.Kind() == protoreflect.StringKind && fd.IsList():
			for i := range v.List().Len() {
				v.List().Set(i, protoreflect.ValueOfString(poison))
			}
		case fd.Kind() == protoreflect.StringKind:
			m.Set(fd, protoreflect.ValueOfString(v.String()+poison))
		case fd.Kind() == protoreflect.MessageKind && fd.IsList():
			for i := range v.List().Len() {
				poisonMessage(v.List().Get(i).Message())
			}
		case fd.Kind() == protoreflect.MessageKind && !fd.IsMap():
			poisonMessage(v.Message())
		}
		return true
	})
}

func TestWhatServersSayCannotSteerATerminalNorForgeALine(t *testing.T) {
	refuse := func() error {
		return rpc.Fault{
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
