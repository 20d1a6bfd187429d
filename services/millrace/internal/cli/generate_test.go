package cli_test

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

type generating = grpc.ServerStreamingServer[pb.GenerateResponse]

// teller generates texts and keeps the request.
func teller(got **pb.GenerateRequest, texts ...string) func(*pb.GenerateRequest, generating) error {
	return func(in *pb.GenerateRequest, s generating) error {
		*got = in
		if err := s.Send(begun(in)); err != nil {
			return err
		}
		return say(s, 0, texts...)
	}
}

func TestStatisticsCountCachedPromptTokens(t *testing.T) {
	r := serve(t, &fake{generate: func(in *pb.GenerateRequest, s generating) error {
		first := begun(in)
		first.GetStarted().CachedTokens = 2
		return errors.Join(s.Send(first), say(s, 0, " upon"))
	}})
	require.Equal(t, 0, r.run(t, "generate", "-m", "m", "Once"))
	require.Contains(t, r.err.String(), ", prompt 3 (2 cached), ")
}

func TestGenerateStreamsTextAndThenStatistics(t *testing.T) {
	var got *pb.GenerateRequest
	r := serve(t, &fake{generate: teller(&got, " upon", " a", " time")})
	require.Equal(t, 0, r.run(t, "generate", "-m", "m", "--seed", "7", "Once"))
	require.Equal(t, " upon a time\n", r.out.String())
	require.Regexp(t, `^3 tokens, [^,]+/s, first after [^,]+, prompt 3, seed 42, length reached, w1\n$`, r.err.String())
	require.True(t, proto.Equal(&pb.GenerateRequest{
		Model: "m", Input: &pb.GenerateRequest_Prompt{Prompt: "Once"}, Sampling: &pb.Sampling{Seed: proto.Uint64(7)},
		Stopping: &pb.Stopping{}, Response: &pb.ResponseOptions{}, Cache: &pb.CacheOptions{},
	}, got), "%v", got)
}

func TestGenerateReadsPromptFromArgumentsOrInput(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		in   string
		want string
		code int
	}{
		"one argument":                      {[]string{"Once upon"}, "ignored", "Once upon", 0},
		"several arguments are one text":    {[]string{"Once", "upon"}, "", "Once upon", 0},
		"input without its last line end":   {nil, "Once\nupon\n", "Once\nupon", 0},
		"input by name":                     {[]string{"-"}, "Once\r\n", "Once", 0},
		"a prompt that looks like a flag":   {[]string{"--", "--seed"}, "", "--seed", 0},
		"an empty prompt is refused":        {nil, "\n", "", 2},
		"a prompt without UTF-8 is refused": {nil, "\xff", "", 2},
		"a prompt and ids are refused":      {[]string{"--token-ids", "1", "x"}, "", "", 2},
	} {
		t.Run(name, func(t *testing.T) {
			var got *pb.GenerateRequest
			r := serve(t, &fake{generate: teller(&got, "x")})
			r.in = strings.NewReader(tc.in)
			require.Equal(t, tc.code, r.run(t, append([]string{"generate"}, tc.args...)...), r.err.String())
			require.Equal(t, tc.want, got.GetPrompt())
			if tc.code == 2 {
				require.Nil(t, got)
				require.NotContains(t, r.err.String(), "--help", "the message says all")
			}
		})
	}
}

func TestEveryFlagOfGenerateReachesTheServer(t *testing.T) {
	var got *pb.GenerateRequest
	r := serve(t, &fake{generate: teller(&got, "x")})
	args := []string{
		"generate", "-m", "m", "--json", "--token-ids", "1,2", "--prompt-class", "decode", "--request-id", "id",
		"--expect-model-digest", "d1", "--expect-prompt-digest", "d2", "--expect-class-id", "c",
		"--temperature", "0.5", "--top-k", "1", "--top-p", "0.25", "--min-p", "0.125", "--typical-p", "0.5", "--repetition-penalty", "2",
		"--presence-penalty", "3", "--frequency-penalty", "4", "--penalty-window", "-1", "--logit-bias", "5=-inf",
		"--allowed-tokens", "6,7", "--seed", "8", "--num-sequences", "1",
		"--max-tokens", "10", "--min-tokens", "11", "--stop", "a", "--stop", "b", "--stop-token-ids", "12", "--include-stop-in-output", "--ignore-eos",
		"--output-logprobs", "--output-candidates", "13", "--prompt-logprobs", "14", "--echo-prompt", "--token-ids-only=false", "--progress", "--parts",
		"--priority", "-15", "--fairness-id", "tenant", "--cache-salt", "salt", "--no-prefix-cache",
	}
	require.Equal(t, 0, r.run(t, args...), r.err.String())
	want := &pb.GenerateRequest{
		Model: "m", Input: &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: []uint32{1, 2}}},
		PromptClass: pb.KernelClass_KERNEL_CLASS_DECODE.Enum(), RequestId: proto.String("id"), ExpectModelDigest: proto.String("d1"),
		ExpectPromptDigest: proto.String("d2"), ExpectClassId: proto.String("c"),
		Sampling: &pb.Sampling{
			Temperature: proto.Float32(0.5), TopK: proto.Int32(1), TopP: proto.Float32(0.25), MinP: proto.Float32(0.125), TypicalP: proto.Float32(0.5),
			RepetitionPenalty: proto.Float32(2), PresencePenalty: proto.Float32(3), FrequencyPenalty: proto.Float32(4), PenaltyWindow: proto.Int32(-1),
			LogitBias: map[int32]float32{5: float32(math.Inf(-1))}, AllowedTokens: &pb.TokenIds{Ids: []uint32{6, 7}},
			Seed: proto.Uint64(8), NumSequences: proto.Int32(1),
		},
		Stopping: &pb.Stopping{
			MaxTokens: proto.Int32(10), MinTokens: proto.Int32(11), Stop: []string{"a", "b"}, StopTokenIds: []uint32{12},
			IncludeStopInOutput: proto.Bool(true), IgnoreEos: proto.Bool(true),
		},
		Response: &pb.ResponseOptions{
			OutputLogprobs: proto.Bool(true), OutputCandidates: proto.Int32(13), PromptLogprobs: proto.Int32(14), EchoPrompt: proto.Bool(true),
			TokenIdsOnly: proto.Bool(false), Progress: proto.Bool(true), Parts: proto.Bool(true),
		},
		Priority: proto.Int32(-15), FairnessId: proto.String("tenant"),
		Cache: &pb.CacheOptions{Salt: proto.String("salt"), BypassPrefixCache: proto.Bool(true)},
	}
	require.True(t, proto.Equal(want, got), "%v", got)
	// A knob added to the contract wants a flag here and above.
	for _, m := range []proto.Message{got.GetSampling(), got.GetStopping(), got.GetResponse(), got.GetCache()} {
		fields := m.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			require.True(t, m.ProtoReflect().Has(fields.Get(i)), "%s has no flag", fields.Get(i).FullName())
		}
	}
}

func TestGenerateAsJSONPrintsEventsAndNothingElse(t *testing.T) {
	var got *pb.GenerateRequest
	r := serve(t, &fake{generate: teller(&got, "a\n", "\x1b[31mb")})
	require.Equal(t, 0, r.run(t, "generate", "--json", "Once"))
	var kinds []string
	for _, line := range strings.Split(strings.TrimSuffix(r.out.String(), "\n"), "\n") {
		event := &pb.GenerateResponse{}
		require.NoError(t, protojson.Unmarshal([]byte(line), event), line)
		kinds = append(kinds, string(event.ProtoReflect().WhichOneof(event.ProtoReflect().Descriptor().Oneofs().Get(0)).Name()))
		var object map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &object))
		require.NotContains(t, line, ": ", "one form, not protojson's two")
	}
	require.Equal(t, []string{"started", "tokens", "tokens", "finished"}, kinds)
}

func TestGenerateByTokenIdsPrintsTokenIds(t *testing.T) {
	var got *pb.GenerateRequest
	r := serve(t, &fake{generate: teller(&got, "", "", "")})
	require.Equal(t, 0, r.run(t, "generate", "-q", "--token-ids", "1, 2,3", "--echo-prompt"))
	require.Equal(t, "1,2,3,10,11,12\n", r.out.String())
	require.Empty(t, r.err.String())
	require.True(t, got.GetResponse().GetTokenIdsOnly())
}

func TestGeneratePrintsContinuationsInOrder(t *testing.T) {
	// Events of several continuations interleave; each is printed whole, after the previous one.
	r := serve(t, &fake{generate: func(in *pb.GenerateRequest, s generating) error {
		events := []*pb.GenerateResponse{
			begun(in), tokens(1, 0, "one"), tokens(0, 0, "zero"), finished(1), tokens(2, 0, "two"), tokens(0, 1, " 0\n"), finished(0), tokens(2, 1, " 2"), finished(2),
		}
		for _, e := range events {
			if err := s.Send(e); err != nil {
				return err
			}
		}
		return nil
	}})
	require.Equal(t, 0, r.run(t, "generate", "--num-sequences", "3", "Once"))
	require.Equal(t, "--- 1 of 3 ---\nzero 0\n\n--- 2 of 3 ---\none\n\n--- 3 of 3 ---\ntwo 2\n", r.out.String())
	require.Contains(t, r.err.String(), "5 tokens, ")
}

func TestGenerateRefusedPrintsNothing(t *testing.T) {
	// No heading of a continuation is printed if the server refuses the request.
	r := serve(t, &fake{generate: func(*pb.GenerateRequest, generating) error { return status.Error(codes.InvalidArgument, "no") }})
	require.Equal(t, 4, r.run(t, "generate", "--num-sequences", "3", "Once"))
	require.Empty(t, r.out.String())
}

func TestGenerateJSONPrintsOnlyEvents(t *testing.T) {
	// With --json, continuations are printed as events in the order of arrival.
	r := serve(t, &fake{generate: func(in *pb.GenerateRequest, s generating) error {
		for _, e := range []*pb.GenerateResponse{begun(in), tokens(1, 0, "one"), tokens(0, 0, "zero"), finished(1), finished(0)} {
			if err := s.Send(e); err != nil {
				return err
			}
		}
		return nil
	}})
	require.Equal(t, 0, r.run(t, "generate", "--json", "--num-sequences", "2", "--echo-prompt", "Once"))
	lines := strings.Split(strings.TrimSuffix(r.out.String(), "\n"), "\n")
	require.Len(t, lines, 5)
	for _, line := range lines {
		require.NoError(t, protojson.Unmarshal([]byte(line), &pb.GenerateResponse{}), line)
	}
	require.Empty(t, r.err.String(), "the events hold the statistics")
}

// timed ends a continuation with the given number of tokens and duration.
func timed(output, completion uint32, decode time.Duration) *pb.GenerateResponse {
	e := finished(output)
	e.GetFinished().Usage = &pb.Usage{PromptTokens: 3, CompletionTokens: completion}
	e.GetFinished().Timings = &pb.Timings{Decode: durationpb.New(decode)}
	return e
}

func TestTheRateIsTheServersAndNotThatOfABurst(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		ends []*pb.GenerateResponse
		want string
	}{
		"one continuation":      {nil, []*pb.GenerateResponse{timed(0, 101, 2*time.Second)}, ", 50.0/s, "},
		"two made side by side": {[]string{"--num-sequences", "2"}, []*pb.GenerateResponse{timed(0, 101, 2*time.Second), timed(1, 51, time.Second)}, ", 75.0/s, "},
	} {
		t.Run(name, func(t *testing.T) {
			r := serve(t, &fake{generate: func(in *pb.GenerateRequest, s generating) error {
				_ = s.Send(begun(in))
				burst := tokens(0, 0, "all at once")
				burst.GetTokens().TokenIds = make([]uint32, 101)
				_ = s.Send(burst)
				for _, e := range tc.ends {
					_ = s.Send(e)
				}
				return nil
			}})
			require.Equal(t, 0, r.run(t, append([]string{"generate", "Once"}, tc.args...)...), r.err.String())
			require.Regexp(t, tc.want, r.err.String())
		})
	}
}

func TestGeneratePrintsDrawnSeed(t *testing.T) {
	// A drawn seed is printed as the flag that repeats the text.
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"drawn":          {nil, ", --seed 42, "},
		"given":          {[]string{"--seed", "77"}, ", seed 77, "},
		"without chance": {[]string{"--temperature", "0"}, ", seed 42, "},
	} {
		t.Run(name, func(t *testing.T) {
			var got *pb.GenerateRequest
			r := serve(t, &fake{generate: teller(&got, "x")})
			require.Equal(t, 0, r.run(t, append([]string{"generate", "Once"}, tc.args...)...))
			require.Contains(t, r.err.String(), tc.want)
		})
	}
}

func TestGeneratePrintsEchoProgressAndStop(t *testing.T) {
	r := serve(t, &fake{generate: func(in *pb.GenerateRequest, s generating) error {
		_ = s.Send(&pb.GenerateResponse{Event: &pb.GenerateResponse_Progress{Progress: &pb.Progress{PrefilledTokens: 64}}})
		_ = s.Send(begun(in))
		_ = s.Send(tokens(0, 0, " upon"))
		return s.Send(&pb.GenerateResponse{Event: &pb.GenerateResponse_Finished{Finished: &pb.Finished{
			Reason: pb.FinishReason_FINISH_REASON_STOP, Matched: &pb.Finished_Stop{Stop: "\n"}}}})
	}})
	require.Equal(t, 0, r.run(t, "generate", "--echo-prompt", "--progress", "Once"))
	require.Equal(t, "Once upon\n", r.out.String())
	require.Contains(t, r.err.String(), "64 prompt tokens computed\n")
	require.Contains(t, r.err.String(), `ended by "\n"`)
}

func TestGenerateReportsChangeOfClass(t *testing.T) {
	// A resume on a worker of another class is reported once, and the prompt is echoed once.
	r := serve(t, &fake{generate: func(in *pb.GenerateRequest, s generating) error {
		_ = s.Send(begun(in))
		_ = s.Send(tokens(0, 0, " upon"))
		again := begun(in)
		again.GetStarted().Exact, again.GetStarted().ClassId = proto.Bool(false), "another"
		_ = s.Send(again)
		_ = s.Send(tokens(0, 1, " a"))
		return s.Send(&pb.GenerateResponse{Event: &pb.GenerateResponse_Finished{Finished: &pb.Finished{
			Reason: pb.FinishReason_FINISH_REASON_LENGTH}}})
	}})
	require.Equal(t, 0, r.run(t, "generate", "--echo-prompt", "Once"))
	require.Equal(t, "Once upon a\n", r.out.String())
	require.Contains(t, r.err.String(), "another class of worker (another), whose tokens may differ\n")
	require.Contains(t, r.err.String(), ", continued on another class of worker")
	require.NotContains(t, r.err.String(), "--seed")
}

func TestGenerateFailureKeepsText(t *testing.T) {
	// A failure within the stream keeps the printed text, and the message has the tokens so far.
	r := serve(t, &fake{generate: func(in *pb.GenerateRequest, s generating) error {
		_ = s.Send(begun(in))
		_ = s.Send(tokens(0, 0, "cut"))
		usage(t, s, 3, 1)
		return rpc.Error{Code: codes.Unavailable, Domain: rpc.SchedulerDomain, Reason: "WORKER_LOST", Message: "lost", Metadata: map[string]string{"worker_id": "w1"}}.Err()
	}})
	require.Equal(t, 3, r.run(t, "generate", "Once"))
	require.Equal(t, "cut\n", r.out.String())
	require.Regexp(t, `(?s)^1 token, .*millrace: lost\n  reason: WORKER_LOST \(UNAVAILABLE, from scheduler.millrace.dev\)\n  worker_id: w1\n`+
		`  so far: 3 prompt tokens, 1 generated\n  try: send it again\n$`, r.err.String())
}

func TestAStreamThatEndsWithoutAnEndingIsAFailure(t *testing.T) {
	r := serve(t, &fake{generate: func(in *pb.GenerateRequest, s generating) error {
		_ = s.Send(begun(in))
		return say(s, 0, "cut")
	}})
	require.Equal(t, 1, r.run(t, "generate", "--num-sequences", "2", "Once"))
	require.Contains(t, r.err.String(), "1 of 2 continuations were finished")
}

func TestRefusalsOfGenerateHaveTheirExitCodes(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		code int
		text string
	}{
		"a model not loaded": {refusal(codes.FailedPrecondition, "MODEL_NOT_LOADED", "no"), 5, "try: millrace load m --target"},
		"an unknown model":   {refusal(codes.NotFound, "UNKNOWN_MODEL", "no"), 5, "millrace models"},
		"a full worker":      {rpc.Error{Code: codes.ResourceExhausted, Domain: "d", Reason: "FULL", Message: "full", RetryAfter: time.Second}.Err(), 7, "try: again in 1s"},
		"a broken server":    {refusal(codes.Internal, "PANIC", "oh"), 1, "reason: PANIC"},
		"a field not built":  {refusal(codes.Unimplemented, "NOT_BUILT", "later"), 4, "NOT_BUILT"},
		"a wrong value": {rpc.Error{Code: codes.InvalidArgument, Domain: "d", Reason: "INVALID_ARGUMENT", Message: "invalid request: a: x; b: y",
			Violations: []rpc.Violation{{Field: "a", Description: "x"}, {Field: "b", Description: "y"}}}.Err(), 4, "invalid request\n  a x\n  b y\n"},
	} {
		t.Run(name, func(t *testing.T) {
			r := serve(t, &fake{generate: func(*pb.GenerateRequest, generating) error { return tc.err }})
			require.Equal(t, tc.code, r.run(t, "generate", "-m", "m", "Once"))
			require.Contains(t, r.err.String(), tc.text)
			require.Empty(t, r.out.String())
		})
	}
}

func TestWrongCommandLinesAreUsage(t *testing.T) {
	for name, args := range map[string][]string{
		"no such command":            {"bogus"},
		"no such flag":               {"generate", "--bogus", "x"},
		"a value of the wrong kind":  {"generate", "--top-k", "x", "x"},
		"logprobs without JSON":      {"generate", "--output-logprobs", "x"},
		"no such class":              {"generate", "--prompt-class", "x", "x"},
		"ids that are none":          {"generate", "--token-ids", "x"},
		"no ids":                     {"generate", "--token-ids", ""},
		"a negative timeout":         {"models", "--timeout", "-1s"},
		"a target without a meaning": {"models", "--target", "bogus://x\x00"},
		"no model to load":           {"load"},
		"two models to load":         {"load", "a", "b"},
		"a cache of no known type":   {"load", "m", "--kv-type", "q4"},
		"no file to score":           {"score"},
		"a file that is not there":   {"score", "/nonexistent/file"},
		"too small a window":         {"score", "--window", "2", "-"},
		"ids to detokenize that are none": {
			"detokenize", "x"},
	} {
		t.Run(name, func(t *testing.T) {
			r := serve(t, &fake{})
			require.Equal(t, 2, r.run(t, args...), r.err.String())
			require.True(t, strings.HasPrefix(r.err.String(), "millrace: "), r.err.String())
			require.Empty(t, r.out.String())
		})
	}
}

func TestWithoutANameTheOnlyLoadedModelIsTaken(t *testing.T) {
	onDisk := model("file")
	onDisk.State = pb.ModelState_MODEL_STATE_ON_DISK
	for name, tc := range map[string]struct {
		models []*pb.ModelInfo
		code   int
		text   string
	}{
		"one is loaded":      {[]*pb.ModelInfo{onDisk, model("m")}, 0, "seed"},
		"several are loaded": {[]*pb.ModelInfo{model("a"), model("b")}, 2, "choose one with -m: a, b"},
		"none is loaded":     {[]*pb.ModelInfo{onDisk}, 5, "millrace load NAME loads one; there are: file"},
		"there is none":      {[]*pb.ModelInfo{}, 5, "there are: none"},
	} {
		t.Run(name, func(t *testing.T) {
			var got *pb.GenerateRequest
			r := serve(t, &fake{generate: teller(&got, "x"), models: tc.models})
			require.Equal(t, tc.code, r.run(t, "generate", "Once"))
			require.Contains(t, r.err.String(), tc.text)
			if tc.code == 0 {
				require.Equal(t, "m", got.GetModel())
			}
		})
	}
}

func TestSignalsCancelTheCall(t *testing.T) {
	for name, tc := range map[string]struct {
		signal syscall.Signal
		code   int
	}{
		"Ctrl-C":  {syscall.SIGINT, 130},
		"SIGTERM": {syscall.SIGTERM, 143},
	} {
		t.Run(name, func(t *testing.T) {
			cancelled := make(chan struct{})
			var r *rig
			r = serve(t, &fake{generate: func(in *pb.GenerateRequest, s generating) error {
				_ = s.Send(begun(in))
				_ = s.Send(tokens(0, 0, "endless"))
				r.signals <- tc.signal
				<-s.Context().Done()
				close(cancelled)
				return s.Context().Err()
			}})
			require.Equal(t, tc.code, r.run(t, "generate", "Once"))
			<-cancelled
			require.Equal(t, 1, r.release, "a second signal must end the process")
		})
	}
}

func TestTheTimeoutIsSentToTheServer(t *testing.T) {
	left := make(chan time.Duration, 1)
	r := serve(t, &fake{generate: func(in *pb.GenerateRequest, s generating) error {
		at, _ := s.Context().Deadline() // without one: long ago
		left <- time.Until(at)
		usage(t, s, 3, 0)
		return refusal(codes.DeadlineExceeded, "DEADLINE", "too late")
	}})
	require.Equal(t, 6, r.run(t, "generate", "-m", "m", "--timeout", "1h", "Once"))
	require.InDelta(t, float64(time.Hour), float64(<-left), float64(5*time.Minute))
	require.Contains(t, r.err.String(), "so far: 3 prompt tokens, 0 generated\n  try: a longer --timeout")
}

func TestGenerateEndsAtIgnoredDeadline(t *testing.T) {
	// The client ends the call at its deadline, also if the server ignores it.
	r := serve(t, &fake{generate: func(_ *pb.GenerateRequest, s generating) error {
		<-s.Context().Done()
		return s.Context().Err()
	}})
	require.Equal(t, 6, r.run(t, "generate", "-m", "m", "--timeout", "50ms", "Once"))
	require.Contains(t, r.err.String(), "a longer --timeout")
}

func TestAServerThatIsNotThereIsUnavailable(t *testing.T) {
	r := &rig{target: "127.0.0.1:1"}
	for _, args := range [][]string{
		{"generate", "x"}, {"generate", "-m", "m", "x"}, {"chat"}, {"load", "m"}, {"unload", "m"}, {"models"}, {"workers", "--once"},
		{"tokenize", "x"}, {"detokenize", "1"}, {"score", "-"}, {"embed", "x"}, {"rerank", "q", "x"},
	} {
		t.Run(args[0], func(t *testing.T) {
			r.err, r.in = buffer{}, strings.NewReader("text")
			require.Equal(t, 3, r.run(t, args...))
			require.Contains(t, r.err.String(), "cannot reach 127.0.0.1:1")
			require.Contains(t, r.err.String(), "try: ")
		})
	}
}

func TestVersionsAndHelpArePrinted(t *testing.T) {
	r := &rig{target: "127.0.0.1:1"}
	require.Equal(t, 0, r.run(t, "--version"))
	require.Regexp(t, `^millrace \S+\n$`, r.out.String())
	before := r.out.String()
	require.Equal(t, 0, r.run(t, "version"))
	require.Equal(t, before+before, r.out.String())
	require.Equal(t, 0, r.run(t, "--help"))
	for _, text := range []string{"Exit codes:", "130", "MILLRACE_TARGET", "generate", "chat", "load", "unload", "models", "workers", "embed", "rerank", "tokenize", "detokenize", "score", "health"} {
		require.Contains(t, r.out.String(), text)
	}
	require.Empty(t, r.err.String())
}

func progress(state pb.LoadState, done, total uint64) *pb.LoadModelResponse {
	return &pb.LoadModelResponse{WorkerId: "w1", Event: &pb.LoadModelResponse_Progress{Progress: &pb.LoadProgress{
		State: state, BytesDone: done, BytesTotal: total, Eta: durationpb.New(3 * time.Second)}}}
}
