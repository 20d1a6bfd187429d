package server

import (
	"context"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/relay"
	"github.com/millrace/millrace/services/scheduler/internal/route"
	"github.com/millrace/millrace/services/scheduler/internal/rpcstatus"
)

// Embed and Rerank are routed like generations: they wait for a slot, count as load, and go to a
// worker whose context holds their longest text. Their response is one message, so a call whose
// worker is lost starts again elsewhere.

const (
	// textSlots is how many slots a call with many texts claims. The worker computes more at once if
	// it has room, and it makes progress with one.
	textSlots = 4
	// atOnce is how many of a call's texts a worker computes at once, and so needs memory for.
	atOnce = 32
	// templateBytes is about what a rerank template adds to a document and its query.
	templateBytes = 400
)

// textCall has the fields that EmbedRequest and RerankRequest share.
type textCall interface {
	proto.Message
	GetModel() string
	GetExpectModelDigest() string
	GetExpectClassId() string
	GetRequestId() string
	GetFairnessId() string
	GetPriority() int32
	GetTruncate() bool
}

// texts counts the texts of a call, in tokens by estimate.
type texts struct {
	count, tokens, longest int64
}

// add adds a text of n tokens, of which it has most at most.
func (t *texts) add(tokens, most int64) {
	t.count++
	t.tokens += tokens
	t.longest = max(t.longest, most)
}

// embedding reads the fields of an Embed that routing uses. The worker checks their values.
func embedding(ctx context.Context, raw []byte) (relay.Request, error) {
	in, t := &pb.EmbedRequest{}, texts{}
	if err := rpc.Decode(raw, in, rpcstatus.Domain); err != nil {
		return relay.Request{}, err
	}
	for _, text := range in.GetTexts() {
		t.add(int64(len(text))/bytesPerToken, int64(len(text))/leastBytesPerToken)
	}
	for _, ids := range in.GetTokenIds() {
		t.add(int64(len(ids.GetIds())), int64(len(ids.GetIds())))
	}
	return textRequest(ctx, in, t)
}

// reranking does the same for a Rerank.
func reranking(ctx context.Context, raw []byte) (relay.Request, error) {
	in, t := &pb.RerankRequest{}, texts{}
	if err := rpc.Decode(raw, in, rpcstatus.Domain); err != nil {
		return relay.Request{}, err
	}
	each := int64(len(in.GetQuery()) + len(in.GetInstruction()) + templateBytes)
	for _, document := range in.GetDocuments() {
		all := each + int64(len(document))
		t.add(all/bytesPerToken, all/leastBytesPerToken)
	}
	return textRequest(ctx, in, t)
}

func textRequest(ctx context.Context, in textCall, t texts) (relay.Request, error) {
	if err := checkName(in.GetModel()); err != nil {
		return relay.Request{}, err
	}
	length := t.longest
	if in.GetTruncate() { // a text is cut behind the same token, whichever worker is chosen
		length = route.Unbounded
	}
	prompt := t.tokens * min(t.count, atOnce) / max(t.count, 1)
	return relay.Request{
		Route: route.Request{
			Model: in.GetModel(), Digest: in.GetExpectModelDigest(), ClassID: in.GetExpectClassId(), Length: length, Prompt: prompt,
			Sequences: max(min(t.count, textSlots), 1), Tokens: t.tokens, RoutingKey: routingKey(ctx), Priority: in.GetPriority(),
			Tenant: in.GetFairnessId(),
		},
		Prompt: prompt, ID: in.GetRequestId(), Tokens: usageTokens,
	}, nil
}

// Field numbers of usage in EmbedResponse and RerankResponse, and of prompt_tokens in Usage. A test
// compares them with the contract.
const (
	usageField        = 2
	promptTokensField = 1
)

// usageTokens returns the tokens that the usage of a response states, without decoding its vectors.
func usageTokens(response []byte) int64 {
	usage, n := protowire.ConsumeBytes(field(response, usageField, protowire.BytesType))
	if n < 0 {
		return 0
	}
	tokens, n := protowire.ConsumeVarint(field(usage, promptTokensField, protowire.VarintType))
	if n < 0 {
		return 0
	}
	return int64(tokens)
}

// field returns the value of the first field of a number and a type in a message; nil without one.
func field(message []byte, want protowire.Number, of protowire.Type) []byte {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil
		}
		size := protowire.ConsumeFieldValue(number, kind, message[n:])
		if size < 0 {
			return nil
		}
		if number == want && kind == of {
			return message[n : n+size]
		}
		message = message[n+size:]
	}
	return nil
}
