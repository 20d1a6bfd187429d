package server

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/embed"
	"github.com/millrace/millrace/gpuworker/generate"
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/gpuworker/prompt"
	"github.com/millrace/millrace/gpuworker/tokenizer"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/auth"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/textlimit"
)

// errRerankOnly: the request generates or embeds, and the model's file makes it a reranker alone.
var errRerankOnly = errors.New("the model is a reranker")

// errVectorsOnly: the request generates, and the layers of the model see later positions.
var errVectorsOnly = errors.New("the model makes vectors alone")

// maxTexts is how many texts or documents a request may have.
const maxTexts = 2048

// textCall is an Embed or Rerank that has its model.
type textCall struct {
	ctx    context.Context
	inst   *model.Instance
	offer  prompt.Model
	tenant string
	end    func()
}

// textRequest has the fields that EmbedRequest and RerankRequest share.
type textRequest interface {
	GetModel() string
	GetFairnessId() string
	GetPriority() int32
}

// beginText admits a checked request and holds its model until end is called.
func (s *Server) beginText(ctx context.Context, in textRequest, digest, class *string) (*textCall, error) {
	if err := s.Admit(); err != nil {
		return nil, err
	}
	inst, release, err := s.models.Acquire(in.GetModel())
	if err != nil {
		return nil, statusOf(err)
	}
	if err := expect(inst, digest, class); err != nil {
		release()
		return nil, statusOf(err)
	}
	ctx, leave := s.drain.deadline.join(ctx)
	ctx, stop := BeforeDeadline(ctx)
	return &textCall{
		ctx: ctx, inst: inst, offer: offerOf(inst), tenant: in.GetFairnessId(), end: func() { stop(); leave(); release() },
	}, nil
}

// job returns what the loop needs of the request. Cached prefixes are shared within a tenant. No
// generation can have the salt, because a cache.salt is valid UTF-8: cached_tokens of a generation
// would else reveal to one tenant what another has reranked.
func (c *textCall) job(in textRequest) embed.Job {
	return embed.Job{ID: rpc.RequestID(c.ctx), Schedule: generate.Schedule{
		Priority: in.GetPriority(), Tenant: in.GetFairnessId(), Salt: "rerank\xff" + in.GetFairnessId(),
	}}
}

// Embed implements InferenceService.
func (s *Server) Embed(ctx context.Context, in *pb.EmbedRequest) (*pb.EmbedResponse, error) {
	if in.RequestId != nil {
		rpc.SetRequestID(ctx, in.GetRequestId())
	}
	rpc.Annotate(ctx, "model", in.GetModel())
	if err := invalid(checkEmbed(in)); err != nil {
		return nil, err
	}
	c, err := s.beginText(ctx, in, in.ExpectModelDigest, in.ExpectClassId)
	if err != nil {
		return nil, err
	}
	defer c.end()
	out, err := s.embed(c, in)
	if err != nil {
		return nil, statusOf(err)
	}
	rpc.Annotate(ctx, "prompt_tokens", int(out.GetUsage().GetPromptTokens()))
	return out, nil
}

func (s *Server) embed(c *textCall, in *pb.EmbedRequest) (*pb.EmbedResponse, error) {
	facts := c.inst.Facts
	if facts.Pooling == arch.PoolingRank {
		return nil, fmt.Errorf("%w: %q computes scores and no vectors: call Rerank", errRerankOnly, c.inst.Name)
	}
	if err := invalid(checkEmbedAgainst(in, facts)); err != nil {
		return nil, err
	}
	shape, pooling := shapeOf(in, facts)
	shape.Dense = c.inst.Dense
	n := max(len(in.GetTexts()), len(in.GetTokenIds()))
	width := facts.Width
	if shape.Dimensions > 0 {
		width = shape.Dimensions
	}
	bytes := embedBytes(n, width)
	if bytes > textlimit.Bytes {
		return nil, tooLarge(bytes)
	}
	if err := rpc.ReserveResponse(c.ctx, int64(bytes)+idsMemory(in), rpc.WorkerDomain); err != nil {
		return nil, err
	}
	s.logTexts(c.ctx, in.GetModel(), in.GetTexts())
	prompts, cut, err := s.textPrompts(c, in)
	if err != nil {
		return nil, err
	}
	out := &pb.EmbedResponse{
		Embeddings: make([]*pb.Embedding, n), Usage: &pb.Usage{}, ModelDigest: hex.EncodeToString(c.inst.Digest[:]),
		ClassId: c.inst.ClassID, Pooling: pooling,
	}
	for i, ids := range prompts {
		out.Embeddings[i] = &pb.Embedding{Tokens: uint32(len(ids)), Truncated: cut[i]}
		out.Usage.PromptTokens += uint32(len(ids))
	}
	auth.MeterOf(c.ctx).Add(int64(out.GetUsage().GetPromptTokens()))
	vectors, err := embed.Vectors(c.ctx, c.inst.Loop, prompts, shape, c.job(in))
	if err != nil {
		return nil, err
	}
	for i, v := range vectors {
		out.Embeddings[i].Values = v
	}
	return out, nil
}

// shapeOf returns how the vectors of a request are made.
func shapeOf(in *pb.EmbedRequest, facts model.Facts) (embed.Shape, pb.Pooling) {
	pooling := in.GetPooling()
	if pooling == pb.Pooling_POOLING_UNSPECIFIED {
		pooling = pb.Pooling(facts.Pooling)
	}
	if pooling == pb.Pooling_POOLING_UNSPECIFIED {
		pooling = pb.Pooling_POOLING_LAST
	}
	return embed.Shape{
		Pool: batch.Pooling(pooling), Dimensions: int(in.GetDimensions()), Normalize: orDefault(in.Normalize, true),
	}, pooling
}

// idsMemory bounds the memory of the ids of a request's texts: each byte may become one.
func idsMemory(in *pb.EmbedRequest) (bytes int64) {
	for _, text := range in.GetTexts() {
		bytes += 4 * int64(len(text))
	}
	for _, ids := range in.GetTokenIds() {
		bytes += 4 * int64(len(ids.GetIds()))
	}
	return bytes
}

// textPrompts returns the ids of all texts, and which texts were cut. It checks all of them before
// one is computed.
func (s *Server) textPrompts(c *textCall, in *pb.EmbedRequest) (prompts [][]int32, cut []bool, err error) {
	prompts = make([][]int32, max(len(in.GetTexts()), len(in.GetTokenIds())))
	cut = make([]bool, len(prompts))
	trailing := tokenizer.None
	if len(in.GetTexts()) > 0 && c.inst.Tokenizer != nil {
		trailing = c.inst.Tokenizer.Trailing()
	}
	for i := range prompts {
		if len(in.GetTexts()) > 0 {
			prompts[i], err = s.encoder.Encode(c.ctx, c.offer, c.tenant, in.GetTexts()[i], tokenizer.EncodeOptions{
				AddSpecial: true, MaxIDs: c.inst.Context,
			})
		} else {
			prompts[i] = tokens(in.GetTokenIds()[i].GetIds())
		}
		switch {
		case err != nil:
			return nil, nil, err
		case len(prompts[i]) == 0:
			return nil, nil, fmt.Errorf("%w: text %d", prompt.ErrNoTokens, i)
		case len(prompts[i]) <= c.inst.Context:
			continue
		case !in.GetTruncate():
			return nil, nil, fmt.Errorf("%w: text %d has more than %d tokens, which is the context of %q here: cut it, or set truncate",
				batch.ErrTooLong, i, c.inst.Context, c.inst.Name)
		}
		prompts[i], cut[i] = prompts[i][:c.inst.Context:c.inst.Context], true
		if trailing != tokenizer.None {
			prompts[i][c.inst.Context-1] = trailing
		}
	}
	return prompts, cut, nil
}

// checkEmbed returns the violations of a request that do not depend on its model.
func checkEmbed(in *pb.EmbedRequest) []rpc.Violation {
	c := &Checker{}
	c.textRequest(in, in.RequestId, in.ExpectModelDigest)
	switch texts, ids := len(in.GetTexts()), len(in.GetTokenIds()); {
	case texts == 0 && ids == 0:
		c.Add("texts", "one of texts and token_ids is required")
	case texts > 0 && ids > 0:
		c.Add("token_ids", "is given with texts: give one of the two")
	case texts > maxTexts, ids > maxTexts:
		c.Add("texts", "has %d entries, at most %d", max(texts, ids), maxTexts)
	}
	for i, text := range in.GetTexts() {
		if text == "" {
			c.Add(fmt.Sprintf("texts[%d]", i), "is empty: give at least one character")
		}
	}
	for i, ids := range in.GetTokenIds() {
		if len(ids.GetIds()) == 0 {
			c.Add(fmt.Sprintf("token_ids[%d].ids", i), "is empty: give at least one token")
		}
	}
	if _, known := pb.Pooling_name[int32(in.GetPooling())]; !known {
		c.Add("pooling", "is %d, which is no pooling", in.GetPooling())
	}
	return c.violations
}

// textRequest checks the fields that Embed and Rerank have in common.
func (c *Checker) textRequest(in textRequest, requestID, digest *string) {
	if requestID != nil && !rpc.ValidRequestID(*requestID) {
		c.Add("request_id", "want 1 to 128 printable ASCII characters")
	}
	if in.GetModel() == "" {
		c.Add("model", "is required: the name of a loaded model")
	}
	c.Digest("expect_model_digest", digest)
	c.fairnessID(in.GetFairnessId())
}

// checkEmbedAgainst returns the violations of a request that depend on its model.
func checkEmbedAgainst(in *pb.EmbedRequest, facts model.Facts) []rpc.Violation {
	c := &Checker{}
	if d := in.Dimensions; d != nil && (*d == 0 || int64(*d) > int64(facts.Width)) {
		c.Add("dimensions", "is %d, want [1, %d]: the width of this model's vectors", *d, facts.Width)
	}
	for i, ids := range in.GetTokenIds() {
		c.ids(fmt.Sprintf("token_ids[%d].ids", i), ids.GetIds(), facts.Vocabulary)
	}
	return c.violations
}

// embedBytes returns the most bytes that an EmbedResponse has on the wire.
func embedBytes(texts, width int) int {
	const rest = 256 // digest, class, usage and pooling
	one := 1 + protowire.SizeBytes(4*width) + 6 + 2
	return texts*(1+protowire.SizeBytes(one)) + rest
}

// logTexts logs the beginnings of texts, with --log-prompts.
func (s *Server) logTexts(ctx context.Context, name string, texts []string) {
	if !s.cfg.LogPrompts {
		return
	}
	var all strings.Builder
	for _, text := range texts {
		if all.Len() < maxLoggedBytes {
			all.WriteString(text[:min(len(text), maxLoggedBytes)] + "\n")
		}
	}
	first := all.String()
	s.logger.Info("texts", "request_id", rpc.RequestID(ctx), "model", name, "texts", len(texts),
		"text", strings.ToValidUTF8(first[:min(len(first), maxLoggedBytes)], ""))
}
