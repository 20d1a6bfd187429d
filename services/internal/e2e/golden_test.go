package e2e

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// golden reads a file of testdata/golden.
func golden[T any](t *testing.T, name string) map[string]T {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, "testdata", "golden", name))
	require.NoError(t, err)
	var out map[string]T
	require.NoError(t, json.Unmarshal(data, &out))
	require.NotEmpty(t, out)
	return out
}

// The engine's own tests compare the library with the same continuations.
func TestGreedyContinuationMatchesTheLibrary(t *testing.T) {
	t.Parallel()
	texts := golden[struct {
		TokenIDs []uint32 `json:"token_ids"`
	}](t, "stories-5m-f16.json")
	continuations := golden[struct {
		Prompt []uint32 `json:"prompt"`
		Tokens []uint32 `json:"tokens"`
	}](t, "stories-continuations.json")
	w := startWorker(t, "w1", "--device", "cpu", "--load", storiesF16)
	s := startScheduler(t, []*server{w})
	s.untilServed(t, storiesF16, 1)
	for name, text := range texts {
		want := continuations[name]
		require.Equal(t, want.Prompt, text.TokenIDs[:16])
		require.GreaterOrEqual(t, len(want.Tokens), 32)
		in := func() *pb.GenerateRequest {
			in := ask(storiesF16, int32(len(want.Tokens)))
			in.Input = &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: text.TokenIDs[:16]}}
			in.Response = &pb.ResponseOptions{OutputLogprobs: ptr(true), OutputCandidates: ptr(int32(4))}
			return in
		}
		direct := generate(within(t), w.infer, in())
		require.NoError(t, direct.err)
		require.Equal(t, want.Tokens, direct.ids, "%s through the worker", name)
		relayed := generate(within(t), s.infer, in())
		require.NoError(t, relayed.err)
		require.Equal(t, want.Tokens, relayed.ids, "%s through the scheduler", name)
		require.Len(t, direct.logprobs, 9*len(want.Tokens))
		require.Equal(t, direct.logprobs, relayed.logprobs, "%s: bits of the logprobs", name)
		require.Equal(t, direct.text, relayed.text)
		require.Equal(t, direct.started.GetModelDigest(), relayed.started.GetModelDigest())
		require.Equal(t, direct.started.GetPromptDigest(), relayed.started.GetPromptDigest())
		require.Equal(t, direct.started.GetClassId(), relayed.started.GetClassId())
	}
}

func TestTokenizeMatchesThroughScheduler(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", "--device", "cpu", "--load", stories)
	s := startScheduler(t, []*server{w})
	s.untilServed(t, stories, 1)
	const text = "Once upon a time, naïve dragons — 龍 — sang 🎶."
	var ids [][]uint32
	for _, on := range []*server{w, s} {
		tokens, err := on.infer.Tokenize(within(t), &pb.TokenizeRequest{
			Model: stories, Input: &pb.TokenizeRequest_Text{Text: text}, AddSpecial: ptr(false),
		})
		require.NoError(t, err)
		ids = append(ids, tokens.GetTokenIds())
		back, err := on.infer.Detokenize(within(t), &pb.DetokenizeRequest{Model: stories, TokenIds: tokens.GetTokenIds()})
		require.NoError(t, err)
		require.Equal(t, text, back.GetText())
	}
	require.Equal(t, ids[0], ids[1])
	require.NotEmpty(t, ids[0])
}

func TestSeedDeterminesContinuations(t *testing.T) {
	// The continuations are the same alone, in a batch, and through a scheduler.
	t.Parallel()
	w := startWorker(t, "w1", "--device", "cpu", "--load", stories)
	s := startScheduler(t, []*server{w})
	s.untilServed(t, stories, 1)
	const tokens = 24
	seeded := func(seed uint64, sequences int32) *pb.GenerateRequest {
		in := ask(stories, tokens)
		in.Sampling = &pb.Sampling{Temperature: ptr(float32(1)), Seed: ptr(seed), NumSequences: ptr(sequences)}
		in.Response = &pb.ResponseOptions{OutputLogprobs: ptr(true)}
		return in
	}
	alone := map[uint64]outcome{}
	for seed := range uint64(4) {
		alone[seed] = generate(within(t), w.infer, seeded(seed, 1))
		require.NoError(t, alone[seed].err)
		require.Len(t, alone[seed].ids, tokens)
	}
	require.NotEqual(t, alone[0].ids, alone[1].ids)
	var beside []*call
	for seed := range uint64(4) {
		c, err := begin(within(t), s.infer, seeded(seed, 1))
		require.NoError(t, err)
		beside = append(beside, c)
	}
	for seed, c := range beside {
		o := c.end()
		require.NoError(t, o.err)
		require.Equal(t, alone[uint64(seed)].ids, o.ids)
		require.Equal(t, alone[uint64(seed)].logprobs, o.logprobs, "to the last bit")
	}
	several, err := s.infer.Generate(within(t), seeded(2, 4))
	require.NoError(t, err)
	ids, finished := map[uint32][]uint32{}, 0
	for {
		in, err := several.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		ids[in.GetTokens().GetOutputIndex()] = append(ids[in.GetTokens().GetOutputIndex()], in.GetTokens().GetTokenIds()...)
		if in.GetFinished() != nil {
			finished++
		}
	}
	require.Equal(t, 4, finished)
	require.Len(t, ids, 4)
	require.Equal(t, alone[2].ids, ids[0], "the first of several is what one alone is")
	for i := range uint32(4) {
		require.Len(t, ids[i], tokens)
	}
}

// The shipped model has a chat template, and its story contains the words of the request.
func TestShippedModelFollowsInstructions(t *testing.T) {
	t.Parallel()
	const model = "stories"
	w := startWorkerOf(t, filepath.Join(root, "models"), "w1", "--device", "cpu", "--load", model)
	in := ask(model, 300)
	in.Stopping.IgnoreEos = nil
	in.Input = &pb.GenerateRequest_Chat{Chat: &pb.Chat{Messages: []*pb.ChatMessage{
		{Role: "user", Content: "Tell me a story about a dog and a red ball."},
	}}}
	out := generate(within(t), w.infer, in)
	require.NoError(t, out.err)
	for _, thing := range []string{"dog", "red ball"} {
		require.Contains(t, out.text, thing)
	}
	require.Equal(t, pb.FinishReason_FINISH_REASON_STOP, out.finished.GetReason(), "the story has an end: %s", out.text)
}
