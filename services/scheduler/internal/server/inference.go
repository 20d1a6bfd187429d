package server

import (
	"context"
	"fmt"
	"io/fs"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/longids"
	"github.com/millrace/millrace/services/internal/prefixkey"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/fault"
	"github.com/millrace/millrace/services/scheduler/internal/relay"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// What a generation is taken to need where the request does not say; it only weighs workers against each other.
const (
	unstatedTokens = 256
	bytesPerToken  = 4
	maxSequences   = 16
)

// leastBytesPerToken is how few bytes of a text request seldom make a token. A worker that is chosen by it and finds that its context
// is too short after all refuses with CONTEXT_TOO_SHORT before it computes anything, and the request goes to one with a longer context.
const leastBytesPerToken = 2

// maxName is how many bytes the name of a model may have at workers.
const maxName = 255

// registerInference registers InferenceService with handlers that relay: a generated handler would decode the request
// and every response.
func (s *Server) registerInference(r grpc.ServiceRegistrar) {
	desc := pb.InferenceService_ServiceDesc
	desc.HandlerType = (*any)(nil)
	desc.Methods = nil
	desc.Streams = []grpc.StreamDesc{
		{StreamName: "Generate", ServerStreams: true, Handler: s.relayed(pb.InferenceService_Generate_FullMethodName, generation)},
		{StreamName: "Embed", Handler: s.relayed(pb.InferenceService_Embed_FullMethodName, named[*pb.EmbedRequest])},
		{StreamName: "Tokenize", Handler: s.relayed(pb.InferenceService_Tokenize_FullMethodName, tokenized)},
		{StreamName: "Detokenize", Handler: s.relayed(pb.InferenceService_Detokenize_FullMethodName, detokenized)},
	}
	r.RegisterService(&desc, s)
}

// relayed is a handler that passes a method on.
func (s *Server) relayed(method string, decode relay.Decode) grpc.StreamHandler {
	return func(_ any, stream grpc.ServerStream) error { return s.relay.Call(stream, method, decode) }
}

// generation reads what routing a Generate needs. Values are the worker's to check.
func generation(ctx context.Context, raw []byte) (relay.Request, error) {
	in := &pb.GenerateRequest{}
	if err := rpc.DecodeBy(longids.Unmarshal, raw, in, fault.Domain); err != nil {
		return relay.Request{}, err
	}
	if err := checkName(in.GetModel()); err != nil {
		return relay.Request{}, err
	}
	sequences := int64(1)
	if in.GetSampling() != nil && in.GetSampling().NumSequences != nil {
		sequences = min(max(int64(in.GetSampling().GetNumSequences()), 1), maxSequences)
	}
	if len(in.GetResume()) > 0 {
		sequences -= ended(in.GetResume(), sequences)
	}
	generated := int64(unstatedTokens)
	if in.GetStopping() != nil && in.GetStopping().MaxTokens != nil {
		generated = max(int64(in.GetStopping().GetMaxTokens()), 0)
	}
	ids := int64(len(in.GetTokenIds().GetIds()))
	prompt := ids
	if prompt == 0 {
		prompt = int64(len(raw)) / bytesPerToken
	}
	return relay.Request{
		Route: route.Request{
			Model: in.GetModel(), Digest: in.GetExpectModelDigest(), ClassID: in.GetExpectClassId(),
			Length: length(in, raw), Prompt: prompt, Sequences: sequences, Tokens: prompt + generated*sequences,
			Keys: keys(in, prompt), RoutingKey: routingKey(ctx), Priority: in.GetPriority(), Tenant: in.GetFairnessId(),
		},
		Prompt: prompt, ID: in.GetRequestId(), Generation: in,
	}, nil
}

// length returns how many tokens the longest sequence of a request may have.
func length(in *pb.GenerateRequest, raw []byte) int64 {
	all := int64(route.Unbounded)
	if in.GetStopping() != nil && in.GetStopping().MaxTokens != nil {
		prompt := int64(len(in.GetTokenIds().GetIds()))
		if prompt == 0 {
			prompt = int64(len(raw)) / leastBytesPerToken
		}
		all = prompt + max(int64(in.GetStopping().GetMaxTokens()), 0)
	}
	if in.ContextLength != nil {
		all = min(all, int64(in.GetContextLength()))
	}
	return all
}

// ended is how many of so many outputs their caller has to the end: nothing is computed for them.
func ended(resume []*pb.Resume, sequences int64) int64 {
	var all [maxSequences]bool
	n := int64(0)
	for _, r := range resume {
		if o := r.GetOutputIndex(); r.GetFinished() && int64(o) < sequences && !all[o] {
			all[o] = true
			n++
		}
	}
	return n
}

// keys are those of a request's prefixes, of a prompt of so many tokens.
func keys(in *pb.GenerateRequest, prompt int64) []route.Key {
	prefixes, total := prefixkey.Of(in)
	out := make([]route.Key, len(prefixes))
	for i, p := range prefixes {
		out[i] = route.Key{Key: p.Key, Tokens: int64(p.Tokens(total, int(prompt)))}
	}
	return out
}

// routingKey is the caller's own; empty if the call has none.
func routingKey(ctx context.Context) string {
	if values := metadata.ValueFromIncomingContext(ctx, rpc.RoutingKey); len(values) > 0 {
		return values[0]
	}
	return ""
}

// named reads what routing a request needs that only names a model.
func named[M interface {
	proto.Message
	GetModel() string
}](_ context.Context, raw []byte) (relay.Request, error) {
	var zero M
	in := zero.ProtoReflect().New().Interface().(M)
	if err := rpc.Decode(raw, in, fault.Domain); err != nil {
		return relay.Request{}, err
	}
	if err := checkName(in.GetModel()); err != nil {
		return relay.Request{}, err
	}
	return relay.Request{Route: route.Request{Model: in.GetModel()}}, nil
}

// tokenized reads what routing a Tokenize needs. Its response says how many tokens the caller used.
func tokenized(ctx context.Context, raw []byte) (relay.Request, error) {
	r, err := named[*pb.TokenizeRequest](ctx, raw)
	r.Tokens = func(response []byte) int64 { return packedNumbers(response, tokenIDsField) }
	return r, err
}

// detokenized reads what routing a Detokenize needs. Its request says how many tokens the caller used.
func detokenized(ctx context.Context, raw []byte) (relay.Request, error) {
	r, err := named[*pb.DetokenizeRequest](ctx, raw)
	ids := packedNumbers(raw, detokenizedField)
	r.Tokens = func([]byte) int64 { return ids }
	return r, err
}

// Field numbers of token_ids, in TokenizeResponse and in DetokenizeRequest; a test ties them to the contract.
const (
	tokenIDsField    = 1
	detokenizedField = 2
)

// packedNumbers is how many numbers a message's list of varints has, packed or not, without decoding it.
func packedNumbers(message []byte, field protowire.Number) (count int64) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return count
		}
		size := protowire.ConsumeFieldValue(number, kind, message[n:])
		if size < 0 {
			return count
		}
		value := message[n : n+size]
		message = message[n+size:]
		switch {
		case number != field:
		case kind == protowire.VarintType:
			count++
		case kind == protowire.BytesType:
			packed, _ := protowire.ConsumeBytes(value)
			for _, b := range packed {
				if b < 0x80 { // the last byte of a number
					count++
				}
			}
		}
	}
	return count
}

// checkName refuses what is no model's name: it can be routed nowhere.
func checkName(model string) error {
	switch {
	case model == "":
		return fault.Invalid("the request names no model: set model to the name of a loaded one, see ListModels",
			rpc.Violation{Field: "model", Description: "must not be empty"})
	case len(model) > maxName:
		return fault.Invalid(fmt.Sprintf("the request's model name has %d bytes: must be at most %d, see ListModels", len(model), maxName),
			rpc.Violation{Field: "model", Description: fmt.Sprintf("must be at most %d bytes", maxName)})
	case !fs.ValidPath(model):
		return fault.Invalid("the request names no model file: a name is path steps divided by \"/\", none of them \".\" or \"..\"",
			rpc.Violation{Field: "model", Description: fmt.Sprintf("%.64q is not the name of a model", model)})
	}
	return nil
}
