package command_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/bench/internal/command"
	bench "github.com/millrace/millrace/services/bench/internal/engine"
	"github.com/millrace/millrace/services/bench/internal/stats"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// server is a fake worker with one model of 40 tokens context; it sends one token a message.
type server struct {
	pb.UnimplementedInferenceServiceServer
	pb.UnimplementedModelServiceServer
	full bool
}

func (s *server) ListModels(context.Context, *pb.ListModelsRequest) (*pb.ListModelsResponse, error) {
	return &pb.ListModelsResponse{Models: []*pb.ModelInfo{{
		Name: "m", State: pb.ModelState_MODEL_STATE_READY, Capabilities: &pb.ModelCapabilities{Vocabulary: 9},
		Loaded: &pb.LoadResult{ContextLength: 40},
	}}}, nil
}

func (s *server) Generate(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
	if s.full || !in.GetResponse().GetTokenIdsOnly() {
		return rpc.Error{Code: codes.ResourceExhausted, Domain: rpc.WorkerDomain, Reason: "FULL", Message: "no room"}.Err()
	}
	for range in.GetStopping().GetMaxTokens() {
		event := &pb.GenerateResponse{Event: &pb.GenerateResponse_Tokens{Tokens: &pb.Tokens{TokenIds: []uint32{1}}}}
		if err := stream.Send(event); err != nil {
			return err
		}
	}
	return stream.Send(&pb.GenerateResponse{Event: &pb.GenerateResponse_Finished{Finished: &pb.Finished{}}})
}

// serve serves s on a socket until the test ends.
func serve(t *testing.T, s *server) (target string) {
	t.Helper()
	rpctest.NoLeaks(t)
	target = "unix:" + filepath.Join(t.TempDir(), "s")
	lis, err := rpc.Listen(t.Context(), target)
	require.NoError(t, err)
	r := rpc.NewServer(rpc.ServerConfig{Domain: rpc.WorkerDomain}, rpctest.Logger(t))
	pb.RegisterInferenceServiceServer(r, s)
	pb.RegisterModelServiceServer(r, s)
	rpctest.Serve(t, r, lis)
	return target
}

func TestLoadReportsEveryLoop(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trace.csv")
	require.NoError(t, os.WriteFile(file, []byte("TIMESTAMP,ContextTokens,GeneratedTokens\n"+
		"2023-11-16 18:15:46,5,7\n2023-11-16 18:15:47,500,3\n2023-11-16 18:16:47,1,1\n"), 0o600))
	for name, tc := range map[string]struct {
		args             []string
		requests, tokens float64
		mode             string
	}{
		"a closed loop":      {[]string{"--requests", "12", "--concurrency", "3", "--max-tokens", "4"}, 12, 48, "closed loop, 3 calls"},
		"an open loop":       {[]string{"--rate", "500", "--requests", "10", "--max-tokens", "2"}, 10, 20, "open loop, 500 calls/s"},
		"a trace":            {[]string{"--trace", file, "--speed", "100"}, 3, 11, "trace of 3 requests at speed 100, 1 of them shortened to 40 tokens"},
		"a part of a trace":  {[]string{"--trace", file, "--speed", "100", "--limit", "1"}, 1, 7, "trace of 1 requests"},
		"a trace for a time": {[]string{"--trace", file, "--speed", "100", "--duration", "500ms"}, 2, 10, "trace of 2 requests"},
	} {
		t.Run(name, func(t *testing.T) {
			target := serve(t, &server{})
			out, err := run(t, append([]string{"load", "--target", target, "--prompt-tokens", "5", "--json", "--ceiling-time", "50ms"}, tc.args...)...)
			require.NoError(t, err)
			var report map[string]any
			require.NoError(t, json.Unmarshal([]byte(out), &report))
			require.Equal(t, tc.requests, report["ok"])
			require.Equal(t, tc.tokens, report["tokens"])
			require.Equal(t, tc.tokens, report["messages"])
			require.Equal(t, "m", report["model"])
			require.Contains(t, report["mode"], tc.mode)
			require.Positive(t, report["ceiling_messages_per_second"])
		})
	}
}

func TestLoadPrintsHistogramsAndCSV(t *testing.T) {
	target, lines := serve(t, &server{}), filepath.Join(t.TempDir(), "calls.csv")
	out, err := run(t, "load", "--target", target, "--requests", "6", "--max-tokens", "3", "--prompt-tokens", "2", "--csv", lines, "--ceiling-time", "20ms", "--save", lines+".json")
	require.NoError(t, err)
	saved, err := os.ReadFile(lines + ".json")
	require.NoError(t, err)
	require.True(t, json.Valid(saved))
	for _, want := range []string{"6 requests in", "p99", "first token", "inter-token", "end to end", "ceiling", "####"} {
		require.Contains(t, out, want)
	}
	text, err := os.ReadFile(lines)
	require.NoError(t, err)
	require.Equal(t, 7, strings.Count(string(text), "\n"))
}

func TestLoadComparesAMixWithTheEngine(t *testing.T) {
	target := serve(t, &server{}) // checks for leaks when all else is closed
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "millrace_step_seconds_sum{model=\"m\"} 5\n")
	}))
	t.Cleanup(page.Close)
	file := filepath.Join(t.TempDir(), "engine.json")
	alone, err := json.Marshal(bench.Report{Mixes: []bench.MixResult{
		{Mix: bench.Mix{Sequences: 9, Prompt: 9, Tokens: 9}}, {Mix: bench.Mix{Sequences: 3, Prompt: 5, Tokens: 4}, Generated: stats.Spread{Median: 1000}},
	}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, alone, 0o600))
	args := []string{"load", "--target", target, "--mix", "3x5/4", "--ceiling-time", "0", "--engine", file,
		"--metrics", page.URL, "--join", "30x20ms", "--no-histogram", "--save", file + ".out"}
	var report struct {
		TokensPerSecond float64 `json:"tokens_per_second"`
		Engine          struct{ Share float64 }
		Join            struct{ Tokens, OK, Requests float64 }
	}
	var out string
	// A slow machine needs longer for one call to join and for two looks at the device.
	for d := 300 * time.Millisecond; report.Join.OK == 0 || !strings.Contains(out, "idle "); d *= 2 {
		require.Less(t, d, time.Minute)
		out, err = run(t, append(args, "--duration", d.String())...)
		require.NoError(t, err)
		saved, err := os.ReadFile(file + ".out")
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(saved, &report))
	}
	require.Contains(t, out, "closed loop, 3 calls")
	require.Contains(t, out, "of the 1000 tokens/s that the engine alone reached for 3x5/4")
	require.Contains(t, out, "joining prompts")
	require.Contains(t, out, "idle     100.00 %")
	require.InEpsilon(t, report.TokensPerSecond/1000, report.Engine.Share, 1e-9)
	require.GreaterOrEqual(t, report.Join.Tokens, report.Join.OK, "a token each, and perhaps those of calls that are cut off at the end")
	require.LessOrEqual(t, report.Join.Tokens, report.Join.Requests)
	args = append(args, "--duration", "300ms")

	floors := filepath.Join(t.TempDir(), "floors.txt")
	require.NoError(t, os.WriteFile(floors, []byte("load m/3x5/4/joined-by-30x20ms failed <= 0\nload m/3x5/4/alone tokens >= 1e12\n"), 0o600))
	out, err = run(t, append(args, "--floors", floors)...)
	require.NoError(t, err)
	require.Contains(t, out, "1 of 1")
	_, err = run(t, append(args, "--floors", floors, "--join", "")...)
	require.ErrorIs(t, err, stats.ErrMissed)
	_, err = run(t, append(args, "--floors", floors, "--join", "31x20ms")...)
	require.ErrorIs(t, err, command.ErrUsage)

	_, err = run(t, append(args, "--mix", "3x5/5")...)
	require.ErrorIs(t, err, command.ErrUsage)
	require.ErrorContains(t, err, "no mix 3x5/5, but [9x9/9 3x5/4]")
	_, err = run(t, append(args, "--metrics", page.URL+"x")...)
	require.ErrorContains(t, err, "--metrics")
}

func TestLoadFailsIfNoCallSucceeds(t *testing.T) {
	target := serve(t, &server{full: true})
	out, err := run(t, "load", "--target", target, "--requests", "3", "--ceiling-time", "0", "--warmup", "0")
	require.ErrorContains(t, err, "no request succeeded")
	require.NotErrorIs(t, err, command.ErrUsage)
	require.Contains(t, out, "3 x ResourceExhausted FULL: no room")
}

func TestLoadNamesTheMissingTarget(t *testing.T) {
	target := "unix:" + filepath.Join(t.TempDir(), "nobody")
	_, err := run(t, "load", "--target", target)
	require.ErrorContains(t, err, target)
	require.NotErrorIs(t, err, command.ErrUsage)
}
