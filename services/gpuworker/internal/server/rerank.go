package server

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/gpuworker/embed"
	"github.com/millrace/millrace/gpuworker/tokenizer"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/auth"
	"github.com/millrace/millrace/services/internal/rpc"
)

// Rerank implements InferenceService.
func (s *Server) Rerank(ctx context.Context, in *pb.RerankRequest) (*pb.RerankResponse, error) {
	if in.RequestId != nil {
		rpc.SetRequestID(ctx, in.GetRequestId())
	}
	rpc.Annotate(ctx, "model", in.GetModel())
	if err := invalid(checkRerank(in)); err != nil {
		return nil, err
	}
	c, err := s.beginText(ctx, in, in.ExpectModelDigest, in.ExpectClassId)
	if err != nil {
		return nil, err
	}
	defer c.end()
	out, err := s.rerank(c, in)
	if err != nil {
		return nil, statusOf(err)
	}
	rpc.Annotate(ctx, "prompt_tokens", int(out.GetUsage().GetPromptTokens()))
	return out, nil
}

func (s *Server) rerank(c *textCall, in *pb.RerankRequest) (*pb.RerankResponse, error) {
	if c.inst.Reranker == nil {
		return nil, fmt.Errorf("%w: %q needs a template named \"rerank\" or the tokens of Qwen3's chat form, and \"yes\" and \"no\" as tokens",
			embed.ErrNotAReranker, c.inst.Name)
	}
	if err := rpc.ReserveResponse(c.ctx, rerankMemory(in, c.inst.Context), rpc.WorkerDomain); err != nil {
		return nil, err
	}
	s.logTexts(c.ctx, in.GetModel(), append([]string{in.GetQuery()}, in.GetDocuments()...))
	encode := func(text string, o tokenizer.EncodeOptions) ([]int32, error) {
		return s.encoder.Encode(c.ctx, c.offer, c.tenant, text, o)
	}
	query := embed.Query{Text: in.GetQuery(), Instruction: in.GetInstruction()}
	prompts, err := c.inst.Reranker.Prompts(encode, query, in.GetDocuments(), c.inst.Context, in.GetTruncate())
	if err != nil {
		return nil, err
	}
	out := &pb.RerankResponse{
		Results: make([]*pb.RerankResult, len(prompts)), Usage: &pb.Usage{}, ModelDigest: hex.EncodeToString(c.inst.Digest[:]),
		ClassId: c.inst.ClassID,
	}
	for i, p := range prompts {
		out.Results[i] = &pb.RerankResult{Index: uint32(i), Tokens: uint32(len(p.IDs)), Truncated: p.Truncated}
		out.Usage.PromptTokens += uint32(len(p.IDs))
	}
	auth.MeterOf(c.ctx).Add(int64(out.GetUsage().GetPromptTokens()))
	scores, cached, err := c.inst.Reranker.Scores(c.ctx, c.inst.Loop, prompts, c.job(in))
	if err != nil {
		return nil, err
	}
	for i, score := range scores {
		out.Results[i].Score = score
	}
	out.Usage.CachedTokens = uint32(cached)
	slices.SortStableFunc(out.GetResults(), func(a, b *pb.RerankResult) int { return cmp.Compare(b.GetScore(), a.GetScore()) })
	if in.TopN != nil {
		out.Results = out.GetResults()[:min(int(in.GetTopN()), len(out.GetResults()))]
	}
	return out, nil
}

// rerankMemory bounds the memory of the prompts: each byte of a document, and of the query once for
// each document, may become a token id, and no prompt has more ids than the context. Without the
// context, a query of 64 KiB with 2048 documents would reserve a gibibyte and keep others out.
func rerankMemory(in *pb.RerankRequest, context int) int64 {
	each := len(in.GetQuery()) + len(in.GetInstruction()) + 512
	ids := 0
	for _, document := range in.GetDocuments() {
		ids += min(each+len(document), context)
	}
	return 4 * int64(ids)
}

// maxQueryBytes bounds the query and the instruction, which every document's prompt repeats.
const maxQueryBytes = 64 << 10

// checkRerank returns the violations of a request that do not depend on its model.
func checkRerank(in *pb.RerankRequest) []rpc.Violation {
	c := &Checker{}
	c.textRequest(in, in.RequestId, in.ExpectModelDigest)
	switch n := len(in.GetQuery()); {
	case n == 0:
		c.Add("query", "is required: what the documents are judged by")
	case n > maxQueryBytes:
		c.Add("query", "has %d bytes, at most %d", n, maxQueryBytes)
	}
	if n := len(in.GetInstruction()); in.Instruction != nil && (n == 0 || n > maxQueryBytes || strings.ContainsAny(in.GetInstruction(), "\r\n")) {
		c.Add("instruction", "want one line of 1 to %d bytes: leave it unset for the model's own", maxQueryBytes)
	}
	if n := len(in.GetDocuments()); n == 0 || n > maxTexts {
		c.Add("documents", "has %d entries, want 1 to %d", n, maxTexts)
	}
	if in.TopN != nil && in.GetTopN() == 0 {
		c.Add("top_n", "is 0: leave it unset for all documents")
	}
	return c.violations
}
