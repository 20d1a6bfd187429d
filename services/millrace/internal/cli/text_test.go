package cli_test

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// bytewise has a token a byte.
func bytewise(_ context.Context, in *pb.TokenizeRequest) (*pb.TokenizeResponse, error) {
	out := &pb.TokenizeResponse{}
	text := in.GetText()
	if in.GetChat() != nil {
		text = "<" + in.GetChat().GetMessages()[0].GetContent() + ">"
		out.Rendered = text
	}
	for _, b := range []byte(text) {
		out.TokenIds = append(out.TokenIds, uint32(b))
		out.Pieces = append(out.Pieces, []byte{b})
	}
	return out, nil
}

func TestTokenizeShowsIdsAndPieces(t *testing.T) {
	var got *pb.TokenizeRequest
	r := serve(t, &fake{tokenize: func(ctx context.Context, in *pb.TokenizeRequest) (*pb.TokenizeResponse, error) {
		got = in
		return bytewise(ctx, in)
	}})
	for name, tc := range map[string]struct {
		args []string
		want string
		sent *pb.TokenizeRequest
	}{
		"as a table": {[]string{"a\"é"}, "ID   PIECE\n97   \"a\"\n34   \"\\\"\"\n195  \"\\xc3\"\n169  \"\\xa9\"\n",
			&pb.TokenizeRequest{Model: "m", Input: &pb.TokenizeRequest_Text{Text: "a\"é"}}},
		"as ids": {[]string{"--ids", "ab"}, "97,98\n", &pb.TokenizeRequest{Model: "m", Input: &pb.TokenizeRequest_Text{Text: "ab"}}},
		"as JSON": {[]string{"--json", "a"}, `{"tokenIds":[97],"pieces":["YQ=="]}` + "\n",
			&pb.TokenizeRequest{Model: "m", Input: &pb.TokenizeRequest_Text{Text: "a"}}},
		"special tokens on and off": {[]string{"--ids", "--add-special=false", "--parse-special", "a"}, "97\n",
			&pb.TokenizeRequest{Model: "m", Input: &pb.TokenizeRequest_Text{Text: "a"}, AddSpecial: proto.Bool(false), ParseSpecial: proto.Bool(true)}},
		"as a chat": {[]string{"--chat", "a"}, "rendered: \"<a>\"\nID  PIECE\n60  \"<\"\n97  \"a\"\n62  \">\"\n",
			&pb.TokenizeRequest{Model: "m", Input: &pb.TokenizeRequest_Chat{Chat: &pb.Chat{Messages: []*pb.ChatMessage{{Role: "user", Content: "a"}}}}}},
	} {
		t.Run(name, func(t *testing.T) {
			r.out = buffer{}
			require.Equal(t, 0, r.run(t, append([]string{"tokenize"}, tc.args...)...), r.err.String())
			require.Equal(t, tc.want, r.out.String())
			require.True(t, proto.Equal(tc.sent, got), "%v", got)
		})
	}
}

func TestDetokenizeShowsText(t *testing.T) {
	var got []uint32
	r := serve(t, &fake{detokenize: func(_ context.Context, in *pb.DetokenizeRequest) (*pb.DetokenizeResponse, error) {
		if len(in.GetTokenIds()) == 1 {
			return nil, refusal(codes.FailedPrecondition, "NO_TOKENIZER", "no tokenizer")
		}
		got = in.GetTokenIds()
		return &pb.DetokenizeResponse{Text: "text"}, nil
	}})
	require.Equal(t, 0, r.run(t, "detokenize", "1,22", "3"))
	require.Equal(t, "text\n", r.out.String())
	require.Equal(t, []uint32{1, 22, 3}, got)
	r.in = strings.NewReader("1 22\n3\n")
	require.Equal(t, 0, r.run(t, "detokenize", "--json"))
	out := &pb.DetokenizeResponse{}
	require.NoError(t, protojson.Unmarshal([]byte(strings.TrimPrefix(r.out.String(), "text\n")), out))
	require.Equal(t, 5, r.run(t, "detokenize", "7"))
	require.Contains(t, r.err.String(), "--token-ids 1,2,3")
}

// scorer gives token i of a window the logprob -(i + its id/1000), in two events.
func scorer(seen *[][]uint32) func(*pb.GenerateRequest, generating) error {
	var mu sync.Mutex
	return func(in *pb.GenerateRequest, s generating) error {
		ids := in.GetTokenIds().GetIds()
		mu.Lock()
		*seen = append(*seen, ids)
		mu.Unlock()
		if err := s.Send(begun(in)); err != nil {
			return err
		}
		details := make([]*pb.TokenDetail, len(ids))
		for i, id := range ids {
			details[i] = &pb.TokenDetail{Logprob: proto.Float32(-float32(i) - float32(id)/1000), Rank: proto.Uint32(1)}
		}
		details[0] = &pb.TokenDetail{}
		for _, p := range []*pb.PromptTokens{{Details: details[:2]}, {Details: details[2:], TokenIndex: 2}} {
			if err := s.Send(&pb.GenerateResponse{Event: &pb.GenerateResponse_Prompt{Prompt: p}}); err != nil {
				return err
			}
		}
		return s.Send(finished(0))
	}
}

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "text.txt")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

func TestScoreComputesPerplexityOverWindows(t *testing.T) {
	var seen [][]uint32
	var asked *pb.TokenizeRequest
	var request *pb.GenerateRequest
	inner := scorer(&seen)
	var mu sync.Mutex
	r := serve(t, &fake{
		tokenize: func(ctx context.Context, in *pb.TokenizeRequest) (*pb.TokenizeResponse, error) {
			asked = in
			return bytewise(ctx, in)
		},
		generate: func(in *pb.GenerateRequest, s generating) error {
			mu.Lock()
			request = in
			mu.Unlock()
			return inner(in, s)
		},
	})
	// 23 tokens in windows of 6: three whole ones and one of 5, which has one prediction that counts.
	text := "abcdefghijklmnopqrstuvw"
	require.Equal(t, 0, r.run(t, "score", "-m", "m", "--window", "6", "--class", "decode", "--json", write(t, text)), r.err.String())
	var got map[string]any
	require.NoError(t, json.Unmarshal([]byte(r.out.String()), &got))

	sum, count := 0.0, 0
	for begin := 0; begin < len(text); begin += 6 {
		for i := 4; i < 6 && begin+i < len(text); i++ {
			sum -= float64(float32(i) + float32(text[begin+i])/1000)
			count++
		}
	}
	require.Equal(t, 7, count)
	require.InDelta(t, float64(count), got["tokens"], 0)
	require.InDelta(t, 4, got["windows"], 0)
	require.InEpsilon(t, sum/float64(count), got["mean_logprob"], 1e-6)
	require.InEpsilon(t, math.Exp(-sum/float64(count)), got["perplexity"], 1e-6)
	require.Equal(t, strings.Repeat("ab", 32), got["model_digest"])
	require.Equal(t, "class", got["class_id"])
	require.Equal(t, "decode", got["class"])

	require.Len(t, seen, 4)
	for _, w := range seen {
		require.EqualValues(t, 1000, w[0], "BOS begins a window")
	}
	require.NotNil(t, asked.AddSpecial)
	require.False(t, asked.GetAddSpecial())
	want := &pb.GenerateRequest{
		Model: "m", Input: request.GetInput(), Stopping: &pb.Stopping{MaxTokens: proto.Int32(0)},
		Response:    &pb.ResponseOptions{PromptLogprobs: proto.Int32(0), TokenIdsOnly: proto.Bool(true)},
		PromptClass: pb.KernelClass_KERNEL_CLASS_DECODE.Enum(),
	}
	require.True(t, proto.Equal(want, request), "%v", request)
}

func TestScoreTakesTheModelsContextAsWindow(t *testing.T) {
	var seen [][]uint32
	r := serve(t, &fake{tokenize: bytewise, generate: scorer(&seen)})
	r.in = strings.NewReader(strings.Repeat("x", 200))
	require.Equal(t, 0, r.run(t, "score", "-"), r.err.String())
	require.Contains(t, r.out.String(), "over 93 tokens in 3 windows of 64 (prefill), model abababababab, class class\n")
	require.Contains(t, r.out.String(), "perplexity ")
}

func TestScoreRefusesWhatItCannotScore(t *testing.T) {
	noBOS := model("m")
	noBOS.Capabilities.BosTokenId = nil
	good := func() *fake { return &fake{tokenize: bytewise, generate: scorer(&[][]uint32{})} }
	for name, tc := range map[string]struct {
		fake *fake
		args []string
		text string
		code int
		want string
	}{
		"a model without BOS":          {&fake{models: []*pb.ModelInfo{noBOS}}, nil, "x", 5, "no BOS token"},
		"a text shorter than a window": {good(), []string{"--window", "8"}, "abc", 2, "the text has 3 tokens"},
		"a text that is too large":     {good(), nil, strings.Repeat("a", 16<<20), 2, "at most 15.9 MiB"},
		"a text that is not UTF-8":     {good(), nil, "\xff", 2, "not UTF-8"},
		"an empty text":                {good(), nil, "", 2, "is empty"},
		"no such class":                {good(), []string{"--class", "x"}, "abc", 2, "want prefill or decode"},
		"no windows in flight":         {good(), []string{"--in-flight", "0"}, "abc", 2, "want 1 to 64"},
		"no such model":                {good(), []string{"-m", "n"}, "abc", 5, `there is no model "n"; there are: m`},
		"a server that refuses a window": {&fake{tokenize: bytewise, generate: func(*pb.GenerateRequest, generating) error {
			return refusal(codes.InvalidArgument, "PROMPT_TOO_LONG", "too long")
		}}, []string{"--window", "8"}, strings.Repeat("x", 80), 4, "PROMPT_TOO_LONG"},
		"a server that sends no logprobs": {&fake{tokenize: bytewise, generate: func(in *pb.GenerateRequest, s generating) error {
			_ = s.Send(begun(in))
			return s.Send(finished(0))
		}}, []string{"--window", "8"}, strings.Repeat("x", 8), 1, "too few logprobs"},
	} {
		t.Run(name, func(t *testing.T) {
			r := serve(t, tc.fake)
			require.Equal(t, tc.code, r.run(t, append([]string{"score", write(t, tc.text)}, tc.args...)...))
			require.Contains(t, r.err.String(), tc.want)
			require.Empty(t, r.out.String())
		})
	}
}

func TestScoreRefusesToMixModels(t *testing.T) {
	var mu sync.Mutex
	calls := 0
	inner := scorer(&[][]uint32{})
	r := serve(t, &fake{tokenize: bytewise, generate: func(in *pb.GenerateRequest, s generating) error {
		mu.Lock()
		defer mu.Unlock()
		calls++
		return inner(in, renamed{s, strings.Repeat(string(rune('a'+calls)), 64)})
	}})
	require.Equal(t, 5, r.run(t, "score", "--window", "8", write(t, strings.Repeat("x", 80))))
	require.Contains(t, r.err.String(), "different models")
}

// renamed gives the model another digest.
type renamed struct {
	generating
	digest string
}

func (r renamed) Send(event *pb.GenerateResponse) error {
	if event.GetStarted() != nil {
		event.GetStarted().ModelDigest = r.digest
	}
	return r.generating.Send(event)
}
