package server

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/modeltest"
	"github.com/millrace/millrace/gpuworker/synth"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/textlimit"
)

// sentences are n texts of very different lengths.
func sentences(n int) []string {
	texts := make([]string, n)
	for i := range texts {
		texts[i] = fmt.Sprintf("Once upon a time there was a dog number %d.", i) + strings.Repeat(" It ran away and came back.", i%7)
	}
	return texts
}

func TestVectorsDoNotDependOnNeighbours(t *testing.T) {
	// Each text alone, all in one call, and all beside generations: the same bits.
	w := start(t, cpuDevice(t), "stories")
	texts := sentences(40)
	for _, pooling := range []pb.Pooling{pb.Pooling_POOLING_LAST, pb.Pooling_POOLING_MEAN, pb.Pooling_POOLING_FIRST} {
		all, err := w.infer.Embed(t.Context(), &pb.EmbedRequest{Model: "stories", Texts: texts, Pooling: &pooling})
		require.NoError(t, err)
		require.Len(t, all.GetEmbeddings(), len(texts))
		require.Equal(t, pooling, all.GetPooling())
		ctx, cancel := context.WithCancel(t.Context())
		for range 4 {
			_, err := w.infer.Generate(ctx, &pb.GenerateRequest{Model: "stories", Input: &pb.GenerateRequest_Prompt{Prompt: "Tom"}})
			require.NoError(t, err)
		}
		beside, err := w.infer.Embed(t.Context(), &pb.EmbedRequest{Model: "stories", Texts: texts, Pooling: &pooling})
		cancel()
		require.NoError(t, err)
		tokens := uint32(0)
		for i, text := range texts {
			alone, err := w.infer.Embed(t.Context(), &pb.EmbedRequest{Model: "stories", Texts: []string{text}, Pooling: &pooling})
			require.NoError(t, err)
			one := alone.GetEmbeddings()[0]
			require.Equal(t, one.GetValues(), all.GetEmbeddings()[i].GetValues(), "%v of text %d", pooling, i)
			require.Equal(t, one.GetValues(), beside.GetEmbeddings()[i].GetValues(), "%v of text %d beside generations", pooling, i)
			require.InDelta(t, 1, lengthOf(one.GetValues()), 1e-6)
			require.Equal(t, alone.GetUsage().GetPromptTokens(), one.GetTokens())
			tokens += one.GetTokens()
		}
		require.Equal(t, tokens, all.GetUsage().GetPromptTokens())
		require.Zero(t, all.GetUsage().GetCachedTokens())
		require.LessOrEqual(t, proto.Size(all), embedBytes(len(texts), 256))
	}
}

func lengthOf(v []float32) float64 {
	sum := 0.0
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	return math.Sqrt(sum)
}

func TestShapesOfAVector(t *testing.T) {
	// Dimensions cut first and normalise then. Token ids give what their text gives.
	w := start(t, cpuDevice(t), "stories")
	embed := func(in *pb.EmbedRequest) []float32 {
		in.Model = "stories"
		out, err := w.infer.Embed(t.Context(), in)
		require.NoError(t, err)
		return out.GetEmbeddings()[0].GetValues()
	}
	texts := []string{"The big dog was happy."}
	raw := embed(&pb.EmbedRequest{Texts: texts, Normalize: new(bool)})
	require.Len(t, raw, 256)
	cut := embed(&pb.EmbedRequest{Texts: texts, Dimensions: proto.Uint32(10)})
	require.Len(t, cut, 10)
	for i := range cut {
		require.InDelta(t, float64(raw[i])/lengthOf(raw[:10]), cut[i], 1e-7)
	}
	ids, err := w.infer.Tokenize(t.Context(), textOf(texts[0]))
	require.NoError(t, err)
	byIDs := embed(&pb.EmbedRequest{TokenIds: []*pb.TokenIds{{Ids: ids.GetTokenIds()}}, Normalize: new(bool)})
	require.Equal(t, raw, byIDs)
	require.NotEqual(t, raw, embed(&pb.EmbedRequest{Texts: texts, Normalize: new(bool), Pooling: pb.Pooling_POOLING_MEAN.Enum()}))
}

func TestTextsLongerThanTheContext(t *testing.T) {
	w := start(t, simDevice(t, sim.Options{}), "stories")
	in := &pb.EmbedRequest{Model: "stories", Texts: []string{"a", strings.Repeat("Once upon a time ", 400)}}
	_, err := w.infer.Embed(t.Context(), in)
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	require.Equal(t, reason.PromptTooLong, rpc.Reason(err))
	require.ErrorContains(t, err, "text 1 has more than 512 tokens")
	in.Truncate = proto.Bool(true)
	out, err := w.infer.Embed(t.Context(), in)
	require.NoError(t, err)
	require.EqualValues(t, 512, out.GetEmbeddings()[1].GetTokens())
	require.True(t, out.GetEmbeddings()[1].GetTruncated())
	require.False(t, out.GetEmbeddings()[0].GetTruncated())
	ids, err := w.infer.Tokenize(t.Context(), textOf(in.GetTexts()[1]))
	require.NoError(t, err)
	same, err := w.infer.Embed(t.Context(), &pb.EmbedRequest{Model: "stories", TokenIds: []*pb.TokenIds{{Ids: ids.GetTokenIds()[:512]}}})
	require.NoError(t, err)
	require.Equal(t, same.GetEmbeddings()[0].GetValues(), out.GetEmbeddings()[1].GetValues())
}

func TestEmbedFollowsTheFile(t *testing.T) {
	// The pooling and the token behind a text are the file's. A cut text keeps that token.
	w := startWith(t, simDevice(t, sim.Options{}), func(c *setup) {
		modeltest.WithMetadata(t, filepath.Join(c.models.Dir, "stories.gguf"), filepath.Join(c.models.Dir, "mean.gguf"),
			map[string]any{"llama.pooling_type": uint32(1), "tokenizer.ggml.add_eos_token": true})
	}, "mean", "stories")
	out, err := w.infer.Embed(t.Context(), &pb.EmbedRequest{Model: "mean", Texts: []string{"Tom"}})
	require.NoError(t, err)
	require.Equal(t, pb.Pooling_POOLING_MEAN, out.GetPooling())
	require.EqualValues(t, 3, out.GetUsage().GetPromptTokens())
	long := strings.Repeat("Once upon a time ", 400)
	cut, err := w.infer.Embed(t.Context(), &pb.EmbedRequest{Model: "mean", Texts: []string{long}, Truncate: proto.Bool(true)})
	require.NoError(t, err)
	ids, err := w.infer.Tokenize(t.Context(), &pb.TokenizeRequest{Model: "mean", Input: &pb.TokenizeRequest_Text{Text: long}})
	require.NoError(t, err)
	all := ids.GetTokenIds()
	same, err := w.infer.Embed(t.Context(), &pb.EmbedRequest{Model: "mean", TokenIds: []*pb.TokenIds{{Ids: append(all[:511:511], all[len(all)-1])}}})
	require.NoError(t, err)
	require.Equal(t, same.GetEmbeddings()[0].GetValues(), cut.GetEmbeddings()[0].GetValues())
	list, err := w.models.ListModels(t.Context(), &pb.ListModelsRequest{})
	require.NoError(t, err)
	for _, m := range list.GetModels() {
		c := m.GetCapabilities()
		require.EqualValues(t, 256, c.GetEmbeddingWidth())
		require.False(t, c.GetRerank())
		require.Equal(t, m.GetName() == "mean", c.Pooling != nil)
	}
	require.NotEmpty(t, w.generate(t.Context(), t, &pb.GenerateRequest{
		Model: "mean", Input: &pb.GenerateRequest_Prompt{Prompt: "Tom"}, Stopping: &pb.Stopping{MaxTokens: proto.Int32(3)},
	}).ids[0], "a model with a pooling_type and a head generates too")
}

func TestEmbedRefusals(t *testing.T) {
	w := start(t, simDevice(t, sim.Options{}), "stories")
	text := []string{"Tom"}
	long := make([]string, maxTexts+1)
	for i := range long {
		long[i] = "a"
	}
	for name, tc := range map[string]struct {
		in     *pb.EmbedRequest
		code   codes.Code
		reason string
		says   string
	}{
		"no text":          {&pb.EmbedRequest{}, codes.InvalidArgument, reason.InvalidArgument, "one of texts and token_ids is required"},
		"both inputs":      {&pb.EmbedRequest{Texts: text, TokenIds: []*pb.TokenIds{{Ids: []uint32{1}}}}, codes.InvalidArgument, reason.InvalidArgument, "give one of the two"},
		"too many texts":   {&pb.EmbedRequest{Texts: long}, codes.InvalidArgument, reason.InvalidArgument, "texts: has 2049 entries, at most 2048"},
		"an empty text":    {&pb.EmbedRequest{Texts: []string{"a", ""}}, codes.InvalidArgument, reason.InvalidArgument, "texts[1]: is empty"},
		"no token":         {&pb.EmbedRequest{TokenIds: []*pb.TokenIds{{}}}, codes.InvalidArgument, reason.InvalidArgument, "token_ids[0].ids: is empty"},
		"an unknown token": {&pb.EmbedRequest{TokenIds: []*pb.TokenIds{{Ids: []uint32{2048}}}}, codes.InvalidArgument, reason.InvalidArgument, "token_ids[0].ids[0]: is 2048, want [0, 2048)"},
		"a wide vector":    {&pb.EmbedRequest{Texts: text, Dimensions: proto.Uint32(257)}, codes.InvalidArgument, reason.InvalidArgument, "dimensions: is 257, want [1, 256]"},
		"no dimension":     {&pb.EmbedRequest{Texts: text, Dimensions: proto.Uint32(0)}, codes.InvalidArgument, reason.InvalidArgument, "dimensions: is 0"},
		"another pooling":  {&pb.EmbedRequest{Texts: text, Pooling: pb.Pooling(9).Enum()}, codes.InvalidArgument, reason.InvalidArgument, "pooling: is 9"},
		"another digest":   {&pb.EmbedRequest{Texts: text, ExpectModelDigest: proto.String(strings.Repeat("0", 64))}, codes.FailedPrecondition, reason.DigestMismatch, "expected 0000"},
		"another class":    {&pb.EmbedRequest{Texts: text, ExpectClassId: proto.String("gpu")}, codes.FailedPrecondition, reason.ExpectationFailed, "its class is"},
		"a bad request id": {&pb.EmbedRequest{Texts: text, RequestId: proto.String("\n")}, codes.InvalidArgument, reason.InvalidArgument, "request_id: want"},
		"a bad tenant":     {&pb.EmbedRequest{Texts: text, FairnessId: proto.String("\n")}, codes.InvalidArgument, reason.InvalidArgument, "fairness_id: want"},
	} {
		t.Run(name, func(t *testing.T) {
			tc.in.Model = "stories"
			_, err := w.infer.Embed(t.Context(), tc.in)
			require.Equal(t, tc.code, status.Code(err), "%v", err)
			require.Equal(t, tc.reason, rpc.Reason(err))
			require.ErrorContains(t, err, tc.says)
		})
	}
	require.Greater(t, embedBytes(maxTexts, 4096), textlimit.Bytes, "such a call is refused")
}

func TestEmbedNeedsHiddenRows(t *testing.T) {
	// An engine without them is refused by name, so that a scheduler tries another worker.
	w := start(t, withoutHidden{simDevice(t, sim.Options{})}, "stories")
	_, err := w.infer.Embed(t.Context(), &pb.EmbedRequest{Model: "stories", Texts: []string{"Tom"}})
	require.Equal(t, codes.Unimplemented, status.Code(err))
	require.Equal(t, reason.NotOnThisDevice, rpc.Reason(err))
	require.ErrorContains(t, err, "hidden rows")
}

func TestACancelledEmbedLeavesTheLoop(t *testing.T) {
	w := start(t, simDevice(t, sim.Options{StepTime: 20 * time.Millisecond}), "stories")
	ctx, cancel := context.WithCancel(t.Context())
	inst, release, err := w.manager.Acquire("stories")
	require.NoError(t, err)
	defer release()
	ended := make(chan error)
	go func() {
		_, err := w.infer.Embed(ctx, &pb.EmbedRequest{Model: "stories", Texts: sentences(2000)})
		ended <- err
	}()
	require.Eventually(t, func() bool { return inst.Loop.Stats().Running > 0 }, hang, time.Millisecond)
	cancel()
	require.Equal(t, codes.Canceled, status.Code(<-ended))
	require.Eventually(t, inst.Loop.Idle, hang, time.Millisecond)
}

func TestModelOfWholeTexts(t *testing.T) {
	// EmbeddingGemma's network makes the vectors of llama.cpp, generates nothing, and takes no text that
	// is longer than a step.
	shape, ok := synth.Small("gemma-embedding")
	require.True(t, ok)
	w := startWith(t, cpuDevice(t), func(c *setup) {
		c.models.MaxBatchedTokens = 100
		file, err := os.Create(filepath.Join(c.models.Dir, "embedder.gguf"))
		require.NoError(t, err)
		require.NoError(t, synth.Write(file, shape, synth.Only(gguf.F32), 1))
		require.NoError(t, file.Close())
	}, "embedder")
	var want struct {
		IDs     []int32
		Vectors []struct {
			Tokens int
			Dense  []float64
		}
	}
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "gpuworker", "arch", "testdata", "gemma-embedding.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &want))
	in := &pb.EmbedRequest{Model: "embedder"}
	for _, v := range want.Vectors {
		in.TokenIds = append(in.TokenIds, &pb.TokenIds{Ids: unsigned(want.IDs[:v.Tokens])})
	}
	out, err := w.infer.Embed(t.Context(), in)
	require.NoError(t, err)
	require.Equal(t, pb.Pooling_POOLING_MEAN, out.GetPooling())
	for i, v := range want.Vectors {
		got := out.GetEmbeddings()[i].GetValues()
		require.Len(t, got, 48)
		product, length := 0.0, 0.0
		for j, x := range v.Dense {
			product, length = product+x*float64(got[j]), length+x*x
		}
		require.InDelta(t, 1, product/math.Sqrt(length), 1e-6, "%d tokens", v.Tokens)
	}
	refused := func(err error, code codes.Code, reason, says string) {
		t.Helper()
		require.Equal(t, code, status.Code(err), "%v", err)
		require.Equal(t, reason, rpc.Reason(err))
		require.ErrorContains(t, err, says)
	}
	generated := w.generate(t.Context(), t, &pb.GenerateRequest{Model: "embedder", Input: &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: []uint32{1}}}})
	refused(generated.err, codes.FailedPrecondition, reason.VectorsOnly, "call Embed")
	_, err = w.infer.Rerank(t.Context(), &pb.RerankRequest{Model: "embedder", Query: "q", Documents: []string{"a"}})
	refused(err, codes.FailedPrecondition, reason.NotAReranker, "needs a template named")
	long := &pb.EmbedRequest{Model: "embedder", TokenIds: []*pb.TokenIds{{Ids: make([]uint32, 101)}}}
	_, err = w.infer.Embed(t.Context(), long)
	refused(err, codes.InvalidArgument, reason.PromptTooLong, "text 0 has more than 100 tokens")
}

func unsigned(ids []int32) []uint32 {
	out := make([]uint32, len(ids))
	for i, id := range ids {
		out[i] = uint32(id)
	}
	return out
}
