package target

import (
	"context"
	"strconv"
	"time"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// maxVectorBytes bounds the vectors of one answer, which the gateway holds whole: 2048 vectors of
// 4096 coordinates. It is compared before anything is computed.
const maxVectorBytes = 32<<20 + 1<<16

// Embed computes embeddings. A request whose response would be above the servers' limit is refused
// before anything is computed, with the bytes that it would have; it is then sent in parts that
// fit. ownTenant reports that the server has keys, so that the request's fairness_id was left out.
func (c *Client) Embed(ctx context.Context, in *pb.EmbedRequest) (out *pb.EmbedResponse, ownTenant bool, err error) {
	ownTenant, err = c.withTenant(&in.FairnessId, func() error {
		out, err = c.infer.Embed(ctx, in)
		if size := fittingTexts(in, err); size > 0 {
			out, err = c.embedInParts(ctx, in, size)
		}
		return err
	})
	return out, ownTenant, err
}

// fittingTexts returns how many texts a part of a refused request may have; 0: it is not refused for
// the size of its response, or no part would help.
func fittingTexts(in *pb.EmbedRequest, err error) int {
	if rpc.Reason(err) != reason.ResponseTooLarge {
		return 0
	}
	numbers := rpc.Info(err).GetMetadata()
	bytes, _ := strconv.ParseInt(numbers["bytes"], 10, 64)
	most, _ := strconv.ParseInt(numbers["max_bytes"], 10, 64)
	n := int64(max(len(in.GetTexts()), len(in.GetTokenIds())))
	if bytes <= 0 || most <= 0 || bytes > maxVectorBytes {
		return 0
	}
	return int(n * most / bytes)
}

// embedInParts embeds a request's texts a few at a time, in order.
func (c *Client) embedInParts(ctx context.Context, in *pb.EmbedRequest, size int) (*pb.EmbedResponse, error) {
	texts, ids := in.GetTexts(), in.GetTokenIds()
	part := &pb.EmbedRequest{
		Model: in.GetModel(), Pooling: in.Pooling, Normalize: in.Normalize, Dimensions: in.Dimensions, Truncate: in.Truncate,
		ExpectModelDigest: in.ExpectModelDigest, ExpectClassId: in.ExpectClassId, Priority: in.Priority, FairnessId: in.FairnessId,
	}
	all := &pb.EmbedResponse{Usage: &pb.Usage{}}
	for len(texts)+len(ids) > 0 {
		n := min(size, max(len(texts), len(ids)))
		part.Texts, texts = texts[:min(n, len(texts))], texts[min(n, len(texts)):]
		part.TokenIds, ids = ids[:min(n, len(ids))], ids[min(n, len(ids)):]
		out, err := c.infer.Embed(ctx, part)
		if err != nil {
			return nil, err
		}
		// Further parts are of the same model and class: its vectors would not be comparable else.
		part.ExpectModelDigest, part.ExpectClassId = &out.ModelDigest, &out.ClassId
		all.ModelDigest, all.ClassId, all.Pooling = out.GetModelDigest(), out.GetClassId(), out.GetPooling()
		all.Embeddings = append(all.GetEmbeddings(), out.GetEmbeddings()...)
		all.Usage.PromptTokens += out.GetUsage().GetPromptTokens()
	}
	return all, nil
}

// Rerank scores documents. ownTenant is as that of Embed.
func (c *Client) Rerank(ctx context.Context, in *pb.RerankRequest) (out *pb.RerankResponse, ownTenant bool, err error) {
	ownTenant, err = c.withTenant(&in.FairnessId, func() error {
		out, err = c.infer.Rerank(ctx, in)
		return err
	})
	return out, ownTenant, err
}

// withTenant makes a call. If the servers have keys, each with a tenant of its own, it makes the
// call without the request's tenant. Clients name their users because OpenAI asks them to, and do
// not know which servers have keys.
func (c *Client) withTenant(tenant **string, call func() error) (own bool, err error) {
	if own = *tenant != nil && c.tenants.fixed(time.Now()); own {
		*tenant = nil
	}
	err = call()
	if *tenant != nil && rpc.Reason(err) == reason.OtherTenant {
		c.tenants.set(time.Now())
		own, *tenant = true, nil
		err = call()
	}
	return own, err
}
