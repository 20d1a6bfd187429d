package server

import (
	"encoding/binary"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/gpuworker/embed"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/modeltest"
	"github.com/millrace/millrace/gpuworker/tokenizer"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// withoutHidden is a device whose engine gives no hidden rows, as CUDA engines that were built before they had them.
type withoutHidden struct{ engine.Device }

func (d withoutHidden) Info() (engine.DeviceInfo, error) {
	info, err := d.Device.Info()
	info.HiddenRows = false
	return info, err
}

const rerankForm = "Judge.\n<Instruct>: find the animal\n<Query>: {query}\n<Document>: {document}\nThe answer is"

// rerankers adds two rerankers to a models folder: "reranker", which answers with the tokens of
// "yes" and "no", and "classifier", whose file has a head of its own.
func rerankers(t *testing.T, dir string) {
	t.Helper()
	from := filepath.Join(dir, "stories.gguf")
	file, err := gguf.Open(from)
	require.NoError(t, err)
	pieces, _, err := file.Metadata().Strings("tokenizer.ggml.tokens")
	require.NoError(t, err)
	merges, _, err := file.Metadata().Strings("tokenizer.ggml.merges")
	require.NoError(t, err)
	require.NoError(t, file.Close())
	pieces[1900], pieces[1901] = "yes", "no"
	metadata := map[string]any{"tokenizer.ggml.tokens": pieces, "tokenizer.ggml.merges": append(merges, "y es", "n o"), "tokenizer.chat_template.rerank": rerankForm}
	modeltest.WithMetadata(t, from, filepath.Join(dir, "reranker.gguf"), metadata)
	var head []byte
	for i := range 2 * 256 {
		head = binary.LittleEndian.AppendUint32(head, math.Float32bits(float32(i%13-6)/100))
	}
	modeltest.WithTensors(t, from, filepath.Join(dir, "classifier.gguf"), map[string]any{
		"llama.pooling_type": uint32(4), "llama.classifier.output_labels": []string{"no", "yes"}, "tokenizer.chat_template.rerank": rerankForm,
	}, []modeltest.Tensor{{Name: "cls.output.weight", Type: gguf.F32, Dims: []uint64{256, 2}, Bytes: head}})
}

func documents() []string {
	texts := append(sentences(12), "", "<|yes|> \u0007 The cat sat.")
	return append(texts, texts[0])
}

func TestScoresDoNotDependOnNeighbours(t *testing.T) {
	// Each document alone and all in one call, with and without cached beginnings: the same bits.
	w := startWith(t, cpuDevice(t), func(c *setup) { rerankers(t, c.models.Dir) }, "reranker", "classifier")
	for _, name := range []string{"reranker", "classifier"} {
		in := &pb.RerankRequest{Model: name, Query: "Where is the dog?", Documents: documents()}
		all, err := w.infer.Rerank(t.Context(), in)
		require.NoError(t, err)
		require.Len(t, all.GetResults(), len(in.GetDocuments()))
		again, err := w.infer.Rerank(t.Context(), in)
		require.NoError(t, err)
		require.Positive(t, again.GetUsage().GetCachedTokens(), "the beginning is cached")
		tokens := uint32(0)
		for i, r := range all.GetResults() {
			require.True(t, proto.Equal(r, again.GetResults()[i]))
			if i > 0 {
				before := all.GetResults()[i-1]
				require.True(t, before.GetScore() > r.GetScore() || before.GetScore() == r.GetScore() && before.GetIndex() < r.GetIndex(), "best first")
			}
			tokens += r.GetTokens()
			alone, err := w.infer.Rerank(t.Context(), &pb.RerankRequest{
				Model: name, Query: in.GetQuery(), Documents: in.GetDocuments()[r.GetIndex():][:1], FairnessId: proto.String("another"),
			})
			require.NoError(t, err)
			require.Equal(t, r.GetScore(), alone.GetResults()[0].GetScore(), "%s, document %d", name, r.GetIndex())
			require.Equal(t, r.GetTokens(), alone.GetUsage().GetPromptTokens())
		}
		require.Equal(t, tokens, all.GetUsage().GetPromptTokens())
		best, err := w.infer.Rerank(t.Context(), &pb.RerankRequest{Model: name, Query: in.GetQuery(), Documents: in.GetDocuments(), TopN: proto.Uint32(3)})
		require.NoError(t, err)
		require.Len(t, best.GetResults(), 3)
		require.Equal(t, all.GetResults()[0].GetIndex(), best.GetResults()[0].GetIndex())
		other, err := w.infer.Rerank(t.Context(), &pb.RerankRequest{
			Model: name, Query: in.GetQuery(), Documents: in.GetDocuments()[:1], Instruction: proto.String("find the boat"),
		})
		require.NoError(t, err)
		require.NotEqual(t, scoreOf(all, 0), other.GetResults()[0].GetScore(), "the instruction is a part of the prompt")
	}
}

func TestSaltsDoNotReachRerankedPrompts(t *testing.T) {
	// No cache.salt makes the cached tokens of a generation reveal what another tenant has reranked.
	w := startWith(t, simDevice(t, sim.Options{}), func(c *setup) { rerankers(t, c.models.Dir) }, "reranker")
	in := &pb.RerankRequest{Model: "reranker", Query: strings.Repeat("Where is the dog? ", 8), Documents: documents(), FairnessId: proto.String("bob")}
	_, err := w.infer.Rerank(t.Context(), in)
	require.NoError(t, err)
	again, err := w.infer.Rerank(t.Context(), in)
	require.NoError(t, err)
	require.Positive(t, again.GetUsage().GetCachedTokens())
	inst, release, err := w.manager.Acquire("reranker")
	require.NoError(t, err)
	defer release()
	encode := func(text string, o tokenizer.EncodeOptions) ([]int32, error) {
		return inst.Tokenizer.Encode(text, o), nil
	}
	prompts, err := inst.Reranker.Prompts(encode, embed.Query{Text: in.GetQuery()}, in.GetDocuments(), inst.Context, false)
	require.NoError(t, err)
	guess := &pb.TokenIds{}
	for _, id := range prompts[0].IDs {
		guess.Ids = append(guess.Ids, uint32(id))
	}
	for _, salt := range []string{"bob", "rerank", "rerank/bob"} {
		got := w.generate(t.Context(), t, &pb.GenerateRequest{
			Model: "reranker", Input: &pb.GenerateRequest_TokenIds{TokenIds: guess}, Stopping: &pb.Stopping{MaxTokens: proto.Int32(1)},
			Cache: &pb.CacheOptions{Salt: &salt}, FairnessId: proto.String("bob"),
		})
		require.NoError(t, got.err)
		require.Zero(t, got.started.GetCachedTokens(), salt)
	}
}

func scoreOf(out *pb.RerankResponse, index uint32) float32 {
	for _, r := range out.GetResults() {
		if r.GetIndex() == index {
			return r.GetScore()
		}
	}
	return -1
}

func TestScoreIsTheShareOfYes(t *testing.T) {
	// The logprobs of "yes" and "no" behind the same prompt, by Generate, give the same score.
	w := startWith(t, cpuDevice(t), func(c *setup) { rerankers(t, c.models.Dir) }, "reranker")
	query, document := "Where is the dog?", "A dog sat under the tree."
	out, err := w.infer.Rerank(t.Context(), &pb.RerankRequest{Model: "reranker", Query: query, Documents: []string{document}})
	require.NoError(t, err)
	inst, release, err := w.manager.Acquire("reranker")
	require.NoError(t, err)
	defer release()
	encode := func(text string, o tokenizer.EncodeOptions) ([]int32, error) {
		return inst.Tokenizer.Encode(text, o), nil
	}
	prompts, err := inst.Reranker.Prompts(encode, embed.Query{Text: query}, []string{document}, inst.Context, false)
	require.NoError(t, err)
	logprob := func(answer uint32) float64 {
		ids := &pb.TokenIds{}
		for _, id := range prompts[0].IDs {
			ids.Ids = append(ids.Ids, uint32(id))
		}
		ids.Ids = append(ids.Ids, answer)
		got := w.generate(t.Context(), t, &pb.GenerateRequest{
			Model: "reranker", Input: &pb.GenerateRequest_TokenIds{TokenIds: ids}, Stopping: &pb.Stopping{MaxTokens: proto.Int32(0)},
			Response: &pb.ResponseOptions{PromptLogprobs: proto.Int32(0)},
		})
		require.NoError(t, got.err)
		return float64(got.prompt[len(got.prompt)-1].GetLogprob())
	}
	yes, no := math.Exp(logprob(1900)), math.Exp(logprob(1901))
	require.InDelta(t, yes/(yes+no), out.GetResults()[0].GetScore(), 1e-6)
}

func TestLongDocumentsAreCut(t *testing.T) {
	w := startWith(t, simDevice(t, sim.Options{}), func(c *setup) { rerankers(t, c.models.Dir) }, "reranker")
	in := &pb.RerankRequest{Model: "reranker", Query: "dog", Documents: []string{"a", strings.Repeat("Once upon a time \u00e9\u20ac ", 400)}}
	_, err := w.infer.Rerank(t.Context(), in)
	require.Equal(t, reason.PromptTooLong, rpc.Reason(err))
	require.ErrorContains(t, err, "document 1 and its query")
	in.Truncate = proto.Bool(true)
	out, err := w.infer.Rerank(t.Context(), in)
	require.NoError(t, err)
	for _, r := range out.GetResults() {
		require.Equal(t, r.GetIndex() == 1, r.GetTruncated())
		if r.GetTruncated() {
			require.InDelta(t, 510, r.GetTokens(), 8, "little of the context is left empty")
			require.LessOrEqual(t, r.GetTokens(), uint32(512))
		}
	}
	in.Query = strings.Repeat("Once upon a time ", 400)
	_, err = w.infer.Rerank(t.Context(), in)
	require.Equal(t, reason.PromptTooLong, rpc.Reason(err))
	require.ErrorContains(t, err, "query and instruction")
}

func TestRerankReservesAtMostContexts(t *testing.T) {
	// A long query would else reserve the budget of all calls for prompts that cannot be that long.
	in := &pb.RerankRequest{Query: strings.Repeat("a", maxQueryBytes), Documents: make([]string, maxTexts)}
	require.EqualValues(t, 4*512*maxTexts, rerankMemory(in, 512))
	require.EqualValues(t, 4*(maxQueryBytes+512)*maxTexts, rerankMemory(in, 1<<20))
}

func TestRerankRefusals(t *testing.T) {
	w := startWith(t, withoutHidden{simDevice(t, sim.Options{})}, func(c *setup) { rerankers(t, c.models.Dir) }, "stories", "reranker", "classifier")
	refused := func(err error, code codes.Code, reason, says string) {
		t.Helper()
		require.Equal(t, code, status.Code(err), "%v", err)
		require.Equal(t, reason, rpc.Reason(err))
		require.ErrorContains(t, err, says)
	}
	one := []string{"a"}
	_, err := w.infer.Rerank(t.Context(), &pb.RerankRequest{Model: "stories", Query: "q", Documents: one})
	refused(err, codes.FailedPrecondition, reason.NotAReranker, "needs a template named")
	_, err = w.infer.Rerank(t.Context(), &pb.RerankRequest{Model: "classifier", Query: "q", Documents: one})
	refused(err, codes.Unimplemented, reason.NotOnThisDevice, "hidden rows")
	_, err = w.infer.Rerank(t.Context(), &pb.RerankRequest{Model: "reranker", Query: "q", Documents: one})
	require.NoError(t, err, "tokens need no hidden rows")
	_, err = w.infer.Embed(t.Context(), &pb.EmbedRequest{Model: "classifier", Texts: one})
	refused(err, codes.FailedPrecondition, reason.RerankerOnly, "call Rerank")
	generated := w.generate(t.Context(), t, &pb.GenerateRequest{Model: "classifier", Input: &pb.GenerateRequest_Prompt{Prompt: "a"}})
	refused(generated.err, codes.FailedPrecondition, reason.RerankerOnly, "call Rerank")
	for says, in := range map[string]*pb.RerankRequest{
		"query: is required":            {Documents: one},
		"query: has 65537 bytes":        {Query: strings.Repeat("a", maxQueryBytes+1), Documents: one},
		"documents: has 0 entries":      {Query: "q"},
		"documents: has 2049 entries":   {Query: "q", Documents: make([]string, maxTexts+1)},
		"instruction: want one line":    {Query: "q", Documents: one, Instruction: proto.String("a\nb")},
		"top_n: is 0":                   {Query: "q", Documents: one, TopN: proto.Uint32(0)},
		"expect_model_digest: is no di": {Query: "q", Documents: one, ExpectModelDigest: proto.String("x")},
	} {
		in.Model = "reranker"
		_, err := w.infer.Rerank(t.Context(), in)
		refused(err, codes.InvalidArgument, reason.InvalidArgument, says)
	}
}
