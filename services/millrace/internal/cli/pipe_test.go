package cli_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// complete is a server that answers every call.
func complete(t *testing.T) *fake {
	t.Helper()
	var load *pb.LoadModelRequest
	return &fake{
		generate: scorer(&[][]uint32{}), tokenize: bytewise, load: loader(&load, nil),
		detokenize: func(context.Context, *pb.DetokenizeRequest) (*pb.DetokenizeResponse, error) {
			return &pb.DetokenizeResponse{Text: "text"}, nil
		},
		unload: func(context.Context, *pb.UnloadModelRequest) (*pb.UnloadModelResponse, error) {
			return &pb.UnloadModelResponse{WorkerIds: []string{"w1"}, FreedBytes: 5}, nil
		},
		watch: func(_ *pb.WatchFleetRequest, s watching) error {
			_ = s.Send(wideFleet())
			<-s.Context().Done()
			return s.Context().Err()
		},
	}
}

func TestCommandsAsJSONPrintOnlyObjects(t *testing.T) {
	// Every command with --json prints objects and nothing else, and ends by itself.
	for name, args := range map[string][]string{
		"load": {"load", "m"}, "unload": {"unload", "m"}, "models": {"models"}, "workers": {"workers"}, "wide workers": {"workers", "--wide"},
		"tokenize": {"tokenize", "text"}, "tokenize for a chat": {"tokenize", "--chat", "text"}, "ids": {"tokenize", "--ids", "text"},
		"detokenize": {"detokenize", "1,2"}, "score": {"score", "--window", "8", write(t, strings.Repeat("x", 80))},
	} {
		t.Run(name, func(t *testing.T) {
			r := serve(t, complete(t))
			require.Equal(t, 0, r.run(t, append(args, "--json")...), r.err.String())
			require.Empty(t, r.err.String())
			lines := strings.Split(strings.TrimSuffix(r.out.String(), "\n"), "\n")
			require.NotEmpty(t, lines[0])
			for _, line := range lines {
				var object map[string]any
				require.NoError(t, json.Unmarshal([]byte(line), &object), line)
			}
		})
	}
}

func TestFailureAsJSONHasItsExitCode(t *testing.T) {
	// The explanation goes to standard error, and standard output has only objects.
	refused := refusal(codes.FailedPrecondition, "MODEL_NOT_LOADED", "no")
	f := complete(t)
	f.tokenize = func(context.Context, *pb.TokenizeRequest) (*pb.TokenizeResponse, error) { return nil, refused }
	f.detokenize = func(context.Context, *pb.DetokenizeRequest) (*pb.DetokenizeResponse, error) { return nil, refused }
	f.unload = func(context.Context, *pb.UnloadModelRequest) (*pb.UnloadModelResponse, error) { return nil, refused }
	f.generate = func(*pb.GenerateRequest, generating) error { return refused }
	f.watch = func(*pb.WatchFleetRequest, watching) error { return refused }
	for name, args := range map[string][]string{
		"unload": {"unload", "m"}, "workers": {"workers"}, "tokenize": {"tokenize", "text"}, "detokenize": {"detokenize", "1"},
		"generate": {"generate", "-m", "m", "text"}, "score": {"score", write(t, strings.Repeat("x", 80))},
	} {
		t.Run(name, func(t *testing.T) {
			r := serve(t, f)
			require.Equal(t, 5, r.run(t, append(args, "--json")...))
			require.Empty(t, r.out.String())
			require.Contains(t, r.err.String(), "MODEL_NOT_LOADED")
		})
	}
}

func TestHealthPrintsAndExitsByState(t *testing.T) {
	r := serve(t, &fake{})
	require.Equal(t, 0, r.run(t, "health", "--timeout", hang.String()), r.err.String())
	require.Equal(t, r.target+" serves\n", r.out.String())
	require.Empty(t, r.err.String())
	r.target, r.out = "127.0.0.1:1", buffer{}
	require.Equal(t, 1, r.run(t, "health", "--timeout", hang.String()))
	require.Empty(t, r.out.String())
	require.Contains(t, r.err.String(), "127.0.0.1:1")
}
