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
	"github.com/millrace/millrace/services/internal/packedids"
	"github.com/millrace/millrace/services/internal/prefixhash"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/relay"
	"github.com/millrace/millrace/services/scheduler/internal/route"
	"github.com/millrace/millrace/services/scheduler/internal/rpcstatus"
)

// Estimates of a generation that does not state its lengths. They only compare workers with each
// other.
const (
	unstatedTokens = 256
	bytesPerToken  = 4
	maxSequences   = 16
)

// leastBytesPerToken is a low estimate of the bytes of a text that make a token. If it was not low
// enough, and the chosen worker's context is too short, the worker refuses with CONTEXT_TOO_SHORT
// before it computes anything, and the request moves to a worker with a longer context.
const leastBytesPerToken = 2

// maxName is the workers' limit of the bytes of a model's name.
const maxName = 255

// registerInference registers InferenceService with handlers that relay raw frames. A generated
// handler would decode and encode every request and response.
func (s *Server) registerInference(r grpc.ServiceRegistrar) {
	desc := pb.InferenceService_ServiceDesc
	desc.HandlerType = (*any)(nil)
	desc.Methods = nil
	desc.Streams = []grpc.StreamDesc{
		{StreamName: "Generate", ServerStreams: true, Handler: s.relayHandler(pb.InferenceService_Generate_FullMethodName, generation)},
		{StreamName: "Embed", Handler: s.relayHandler(pb.InferenceService_Embed_FullMethodName, embedding)},
		{StreamName: "Rerank", Handler: s.relayHandler(pb.InferenceService_Rerank_FullMethodName, reranking)},
		{StreamName: "Tokenize", Handler: s.relayHandler(pb.InferenceService_Tokenize_FullMethodName, tokenize)},
		{StreamName: "Detokenize", Handler: s.relayHandler(pb.InferenceService_Detokenize_FullMethodName, detokenize)},
	}
	r.RegisterService(&desc, s)
}

// relayHandler returns a handler that relays a method.
func (s *Server) relayHandler(method string, decode relay.Decode) grpc.StreamHandler {
	return func(_ any, stream grpc.ServerStream) error { return s.relay.Call(stream, method, decode) }
}

// generation reads the fields of a Generate that routing uses. The worker checks their values.
func generation(ctx context.Context, raw []byte) (relay.Request, error) {
	in := &pb.GenerateRequest{}
	if err := rpc.DecodeBy(packedids.Unmarshal, raw, in, rpcstatus.Domain); err != nil {
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
		sequences -= finishedOutputs(in.GetResume(), sequences)
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

// length returns how many tokens the longest sequence of a request may have, with its prompt.
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

// finishedOutputs returns how many of the outputs the caller has already received as finished, so
// that nothing is computed for them.
func finishedOutputs(resume []*pb.Resume, sequences int64) int64 {
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

// keys returns the keys of a request's prefixes, for a prompt of an estimated number of tokens.
func keys(in *pb.GenerateRequest, prompt int64) []route.Key {
	prefixes, total := prefixhash.Of(in)
	out := make([]route.Key, len(prefixes))
	for i, p := range prefixes {
		out[i] = route.Key{Key: p.Key, Tokens: int64(p.Tokens(total, int(prompt)))}
	}
	return out
}

// routingKey returns the routing key in the call's metadata; empty: none.
func routingKey(ctx context.Context) string {
	if values := metadata.ValueFromIncomingContext(ctx, rpc.RoutingKey); len(values) > 0 {
		return values[0]
	}
	return ""
}

// modelOnly reads the model of a request that routing needs nothing else of.
func modelOnly[M interface {
	proto.Message
	GetModel() string
}](_ context.Context, raw []byte) (relay.Request, error) {
	var zero M
	in := zero.ProtoReflect().New().Interface().(M)
	if err := rpc.Decode(raw, in, rpcstatus.Domain); err != nil {
		return relay.Request{}, err
	}
	if err := checkName(in.GetModel()); err != nil {
		return relay.Request{}, err
	}
	return relay.Request{Route: route.Request{Model: in.GetModel()}}, nil
}

// tokenize reads the fields of a Tokenize that routing uses. The caller is charged for the tokens
// in the response.
func tokenize(ctx context.Context, raw []byte) (relay.Request, error) {
	r, err := modelOnly[*pb.TokenizeRequest](ctx, raw)
	r.Tokens = func(response []byte) int64 { return packedNumbers(response, tokenIDsField) }
	return r, err
}

// detokenize reads the fields of a Detokenize that routing uses. The caller is charged for the
// tokens in the request.
func detokenize(ctx context.Context, raw []byte) (relay.Request, error) {
	r, err := modelOnly[*pb.DetokenizeRequest](ctx, raw)
	ids := packedNumbers(raw, detokenizedField)
	r.Tokens = func([]byte) int64 { return ids }
	return r, err
}

// Field numbers of token_ids in TokenizeResponse and in DetokenizeRequest. A test compares them
// with the contract.
const (
	tokenIDsField    = 1
	detokenizedField = 2
)

// packedNumbers counts the numbers in a repeated varint field of a message, packed or not, without
// decoding it.
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

// checkName returns INVALID_ARGUMENT for a name that no model can have.
func checkName(model string) error {
	switch {
	case model == "":
		return rpcstatus.Invalid("the request names no model: set model to the name of a loaded one, see ListModels",
			rpc.Violation{Field: "model", Description: "must not be empty"})
	case len(model) > maxName:
		return rpcstatus.Invalid(fmt.Sprintf("the request's model name has %d bytes: must be at most %d, see ListModels", len(model), maxName),
			rpc.Violation{Field: "model", Description: fmt.Sprintf("must be at most %d bytes", maxName)})
	case !fs.ValidPath(model):
		return rpcstatus.Invalid("the request names no model file: a name is path steps divided by \"/\", none of them \".\" or \"..\"",
			rpc.Violation{Field: "model", Description: fmt.Sprintf("%.64q is not the name of a model", model)})
	}
	return nil
}
