package servertest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/target"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// Model is the model that the server has.
const Model = "org/model"

// PromptTokens and CachedTokens are those of every prompt.
const (
	PromptTokens = 6
	CachedTokens = 2
)

// Words are the texts of the tokens of every output; the id of a token is its index. The third is
// not complete, as a token with half a character.
var Words = []string{"One", " \"two\"\n", "", " \u00e9\u4e16", " five"}

// CallWords are the texts of the tokens of an answer to a chat with tools: reasoning, content, and a call of the first
// tool in three tokens. If the last message is that of a tool, the answer has Words.
var CallWords = []string{"Hm.", "I look.", `{"city": `, `"Oslo"`, "}"}

// CallID is the id of the call.
const CallID = "call_1"

// wordsOf returns the texts of the tokens of an answer.
func wordsOf(in *pb.GenerateRequest) []string {
	messages := in.GetChat().GetMessages()
	if len(in.GetChat().GetTools()) == 0 || in.GetChat().GetToolChoice().GetMode() == pb.ToolMode_TOOL_MODE_NONE ||
		messages[len(messages)-1].GetRole() == "tool" {
		return Words
	}
	return CallWords
}

// partsOf returns the parts of a token of CallWords.
func partsOf(in *pb.GenerateRequest, i int) []*pb.Part {
	if len(wordsOf(in)[i]) == 0 || &wordsOf(in)[0] != &CallWords[0] {
		return nil
	}
	p := &pb.Part{Kind: pb.PartKind_PART_KIND_TOOL_CALL, TextBytes: uint32(len(CallWords[i]))}
	switch i {
	case 0:
		p.Kind = pb.PartKind_PART_KIND_REASONING
	case 1:
		p.Kind = pb.PartKind_PART_KIND_CONTENT
	case 2:
		p.Call = &pb.CallStart{Id: CallID, Name: in.GetChat().GetTools()[0].GetName()}
	}
	return []*pb.Part{p}
}

// Server is the fake server. Its hooks must be set before Start.
type Server struct {
	pb.UnimplementedInferenceServiceServer
	pb.UnimplementedModelServiceServer

	// OnGenerate replaces Answer.
	OnGenerate func(*pb.GenerateRequest, grpc.ServerStreamingServer[pb.GenerateResponse]) error
	// OnEmbed answers Embed; nil: it is not implemented.
	OnEmbed func(*pb.EmbedRequest) (*pb.EmbedResponse, error)
	// OnRerank answers Rerank; nil: it is not implemented.
	OnRerank func(*pb.RerankRequest) (*pb.RerankResponse, error)

	// Aliases are further names of Model.
	Aliases []string

	// Detokenizations counts calls of Detokenize.
	Detokenizations atomic.Int64

	mu struct {
		sync.Mutex
		requests []*pb.GenerateRequest
		metadata []metadata.MD
	}
}

// Start serves over memory until the test ends, and returns a client.
func (s *Server) Start(t testing.TB) *target.Client {
	t.Helper()
	return target.New(rpctest.Pair(t, rpc.ServerConfig{}, s.Register))
}

// Register registers the services on a server.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	pb.RegisterInferenceServiceServer(r, s)
	pb.RegisterModelServiceServer(r, s)
}

// Last returns the last Generate request and its metadata.
func (s *Server) Last() (*pb.GenerateRequest, metadata.MD) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.mu.requests)
	if n == 0 {
		return nil, nil
	}
	return s.mu.requests[n-1], s.mu.metadata[n-1]
}

// Generate records the request and calls OnGenerate or Answer.
func (s *Server) Generate(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
	md, _ := metadata.FromIncomingContext(stream.Context())
	s.mu.Lock()
	s.mu.requests, s.mu.metadata = append(s.mu.requests, proto.CloneOf(in)), append(s.mu.metadata, md)
	s.mu.Unlock()
	if slices.Contains(s.Aliases, in.GetModel()) {
		in.Model = Model
	}
	if s.OnGenerate != nil {
		return s.OnGenerate(in, stream)
	}
	return Answer(in, stream)
}

// Answer sends every output of a request: each has all words, or max_tokens of them.
func Answer(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
	if in.GetModel() != Model {
		return Refusal(codes.NotFound, reason.UnknownModel, fmt.Sprintf("there is no model %q", in.GetModel()))
	}
	if err := stream.Send(Started(in)); err != nil {
		return err
	}
	if len(in.GetResume()) == 0 && (in.GetResponse().GetEchoPrompt() || promptLogprobs(in)) {
		if err := stream.Send(prompt(in)); err != nil {
			return err
		}
	}
	n, why := len(wordsOf(in)), pb.FinishReason_FINISH_REASON_STOP
	if s := in.GetStopping(); s != nil && s.MaxTokens != nil && int(*s.MaxTokens) < n {
		n, why = int(*s.MaxTokens), pb.FinishReason_FINISH_REASON_LENGTH
	}
	outputs := max(1, in.GetSampling().GetNumSequences())
	for i := range n {
		for o := range outputs {
			if i < had(in, o) {
				continue
			}
			if err := stream.Send(Token(in, uint32(o), i)); err != nil {
				return err
			}
		}
	}
	for o := range outputs {
		if err := stream.Send(&pb.GenerateResponse{Event: &pb.GenerateResponse_Finished{Finished: &pb.Finished{
			OutputIndex: uint32(o), Reason: why,
			Usage: &pb.Usage{PromptTokens: PromptTokens, CompletionTokens: uint32(n), CachedTokens: CachedTokens},
		}}}); err != nil {
			return err
		}
	}
	return nil
}

// had returns how many tokens of an output a request resumes.
func had(in *pb.GenerateRequest, output int32) int {
	for _, r := range in.GetResume() {
		if r.GetOutputIndex() == uint32(output) {
			return len(r.GetTokenIds())
		}
	}
	return 0
}

// Started returns the first event of an answer.
func Started(in *pb.GenerateRequest) *pb.GenerateResponse {
	return &pb.GenerateResponse{Event: &pb.GenerateResponse_Started{Started: &pb.Started{
		ModelDigest: "digest", PromptDigest: "prompt", ClassId: "class", PromptTokens: PromptTokens, CachedTokens: CachedTokens,
		Seed: in.GetSampling().GetSeed(), WorkerId: "worker", RequestId: in.GetRequestId(),
	}}}
}

// Token returns the event of the i-th token of an output.
func Token(in *pb.GenerateRequest, output uint32, i int) *pb.GenerateResponse {
	t := &pb.Tokens{OutputIndex: output, TokenIndex: uint32(i), TokenIds: []uint32{uint32(i)}, Text: wordsOf(in)[i], Parts: partsOf(in, i)}
	if in.GetResponse().GetOutputLogprobs() {
		t.Details = []*pb.TokenDetail{detail(i, in.GetResponse().GetOutputCandidates())}
		t.Details[0].TextBytes = uint32(len(t.GetText()))
	}
	return &pb.GenerateResponse{Event: &pb.GenerateResponse_Tokens{Tokens: t}}
}

// detail returns the logprob of the i-th token and n candidates, of which it is the best.
func detail(i int, n int32) *pb.TokenDetail {
	d := &pb.TokenDetail{Logprob: proto.Float32(-0.5), Rank: proto.Uint32(1)}
	for k := range int(n) {
		d.Candidates = append(d.Candidates, &pb.Candidate{TokenId: uint32((i + k) % len(Words)), Logprob: -0.5 - float32(k)})
	}
	return d
}

// prompt returns the event of a prompt of three tokens.
func prompt(in *pb.GenerateRequest) *pb.GenerateResponse {
	p := &pb.PromptTokens{}
	for i := range 3 {
		if in.GetResponse().GetEchoPrompt() {
			p.TokenIds = append(p.TokenIds, uint32(i))
		}
		if promptLogprobs(in) {
			d := &pb.TokenDetail{}
			if i > 0 {
				d = detail(i, in.GetResponse().GetPromptLogprobs())
			}
			p.Details = append(p.Details, d)
		}
	}
	return &pb.GenerateResponse{Event: &pb.GenerateResponse_Prompt{Prompt: p}}
}

func promptLogprobs(in *pb.GenerateRequest) bool {
	return in.GetResponse() != nil && in.GetResponse().PromptLogprobs != nil
}

// ListModels lists a file that is not loaded, Model and its aliases.
func (s *Server) ListModels(context.Context, *pb.ListModelsRequest) (*pb.ListModelsResponse, error) {
	all := []*pb.ModelInfo{{Name: "file", State: pb.ModelState_MODEL_STATE_ON_DISK}}
	for _, name := range append([]string{Model}, s.Aliases...) {
		all = append(all, &pb.ModelInfo{
			Name: name, State: pb.ModelState_MODEL_STATE_READY, ModelDigest: "digest", WorkerIds: []string{"worker"},
			Loaded: &pb.LoadResult{ContextLength: 512}, Capabilities: &pb.ModelCapabilities{Architecture: "llama", Quantisation: "Q8_0", Vocabulary: 5},
		})
	}
	return &pb.ListModelsResponse{Models: all}, nil
}

// Tokenize gives three tokens with the bytes of the text.
func (s *Server) Tokenize(_ context.Context, in *pb.TokenizeRequest) (*pb.TokenizeResponse, error) {
	text := in.GetText()
	for _, m := range in.GetChat().GetMessages() {
		text += m.GetRole() + ":" + m.GetContent()
	}
	third := len(text) / 3
	return &pb.TokenizeResponse{TokenIds: []uint32{0, 1, 2}, Pieces: [][]byte{
		[]byte(text[:third]), []byte(text[third : 2*third]), []byte(text[2*third:]),
	}}, nil
}

// Detokenize joins the words of token ids.
func (s *Server) Detokenize(_ context.Context, in *pb.DetokenizeRequest) (*pb.DetokenizeResponse, error) {
	s.Detokenizations.Add(1)
	text := ""
	for _, id := range in.GetTokenIds() {
		if int(id) >= len(Words) {
			return nil, rpc.Error{Code: codes.InvalidArgument, Domain: rpc.WorkerDomain, Reason: reason.BadTokenID, Message: "no such token",
				Violations: []rpc.Violation{{Field: "token_ids", Description: "no such token"}}}.Err()
		}
		text += Words[id]
	}
	return &pb.DetokenizeResponse{Text: text}, nil
}

// Embed calls OnEmbed.
func (s *Server) Embed(_ context.Context, in *pb.EmbedRequest) (*pb.EmbedResponse, error) {
	if s.OnEmbed == nil {
		return nil, Refusal(codes.Unimplemented, reason.NotBuilt, "this server has no embeddings")
	}
	return s.OnEmbed(in)
}

// Vectors is an OnEmbed that gives each text a vector of one coordinate.
func Vectors(in *pb.EmbedRequest) (*pb.EmbedResponse, error) {
	out := &pb.EmbedResponse{Usage: &pb.Usage{PromptTokens: PromptTokens}}
	for range max(len(in.GetTexts()), len(in.GetTokenIds())) {
		out.Embeddings = append(out.Embeddings, &pb.Embedding{Values: []float32{0.5}})
	}
	return out, nil
}

// Rerank calls OnRerank.
func (s *Server) Rerank(_ context.Context, in *pb.RerankRequest) (*pb.RerankResponse, error) {
	if s.OnRerank == nil {
		return nil, Refusal(codes.Unimplemented, reason.NotBuilt, "this server has no reranker")
	}
	return s.OnRerank(in)
}

// Refusal returns the status with which a server refuses a call.
func Refusal(code codes.Code, why, message string) error {
	return rpc.Error{Code: code, Domain: rpc.SchedulerDomain, Reason: why, Message: message}.Err()
}
