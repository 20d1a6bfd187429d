package server

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

// paths returns the dotted path of every field of a request that has a value.
func paths(d protoreflect.MessageDescriptor, prefix string) (all []string) {
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		path := prefix + string(f.Name())
		if f.Kind() == protoreflect.MessageKind && !f.IsMap() && f.Message().FullName() != "google.protobuf.Timestamp" {
			all = append(all, paths(f.Message(), path+".")...)
			continue
		}
		all = append(all, path)
	}
	return all
}

// changes gives every field a value that is not its default, on top of a request that samples
// freely. Fields that only a chat template can use are in chatOnly.
var changes = map[string]func(*pb.GenerateRequest){
	"request_id":          func(r *pb.GenerateRequest) { r.RequestId = ptr("mine") },
	"model":               func(r *pb.GenerateRequest) { r.Model = "nobody" },
	"expect_model_digest": func(r *pb.GenerateRequest) { r.ExpectModelDigest = ptr(strings.Repeat("0", 64)) },
	"prompt":              func(r *pb.GenerateRequest) { r.Input = &pb.GenerateRequest_Prompt{Prompt: "Tom had"} },
	"token_ids.ids": func(r *pb.GenerateRequest) {
		r.Input = &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: []uint32{5, 6}}}
	},
	"context_length":       func(r *pb.GenerateRequest) { r.ContextLength = ptr(uint32(20)) },
	"expect_prompt_digest": func(r *pb.GenerateRequest) { r.ExpectPromptDigest = ptr(strings.Repeat("0", 64)) },
	"expect_class_id":      func(r *pb.GenerateRequest) { r.ExpectClassId = ptr("cuda-1") },
	"resume.output_index":  func(r *pb.GenerateRequest) { r.Resume = []*pb.Resume{{OutputIndex: 1}} },
	"resume.token_ids":     func(r *pb.GenerateRequest) { r.Resume = []*pb.Resume{{TokenIds: []uint32{1}}} },
	"resume.finished":      func(r *pb.GenerateRequest) { r.Resume = []*pb.Resume{{Finished: true}} },
	"resume.text_bytes":    func(r *pb.GenerateRequest) { r.Resume = []*pb.Resume{{TextBytes: ptr(uint64(1))}} },
	"guided.json_schema": func(r *pb.GenerateRequest) {
		r.Guided, r.Stopping.IgnoreEos = &pb.Guided{Constraint: &pb.Guided_JsonSchema{JsonSchema: "{}"}}, nil
	},
	"guided.regex": func(r *pb.GenerateRequest) {
		r.Guided, r.Stopping.IgnoreEos = &pb.Guided{Constraint: &pb.Guided_Regex{Regex: "a"}}, nil
	},
	"guided.grammar": func(r *pb.GenerateRequest) {
		r.Guided, r.Stopping.IgnoreEos = &pb.Guided{Constraint: &pb.Guided_Grammar{Grammar: "a"}}, nil
	},
	"guided.lark": func(r *pb.GenerateRequest) {
		r.Guided, r.Stopping.IgnoreEos = &pb.Guided{Constraint: &pb.Guided_Lark{Lark: `start: "a"`}}, nil
	},
	"guided.lenient": func(r *pb.GenerateRequest) {
		r.Stopping.IgnoreEos = nil
		r.Guided = &pb.Guided{Lenient: ptr(true), Constraint: &pb.Guided_JsonSchema{JsonSchema: `{"unevaluatedItems":false}`}}
	},
	"guided.any_order": func(r *pb.GenerateRequest) {
		r.Stopping.IgnoreEos = nil
		r.Guided = &pb.Guided{AnyOrder: ptr(true), Constraint: &pb.Guided_JsonSchema{JsonSchema: `{"type":"object"}`}}
	},
	"guided.choice.options": func(r *pb.GenerateRequest) {
		r.Stopping.IgnoreEos = nil
		r.Guided = &pb.Guided{Constraint: &pb.Guided_Choice{Choice: &pb.Choice{Options: []string{"a"}}}}
	},
	"sampling.temperature":        func(r *pb.GenerateRequest) { r.Sampling.Temperature = ptr(float32(0)) },
	"sampling.top_k":              func(r *pb.GenerateRequest) { r.Sampling.TopK = ptr(int32(1)) },
	"sampling.top_p":              func(r *pb.GenerateRequest) { r.Sampling.TopP = ptr(float32(0.1)) },
	"sampling.min_p":              func(r *pb.GenerateRequest) { r.Sampling.MinP = ptr(float32(0.9)) },
	"sampling.typical_p":          func(r *pb.GenerateRequest) { r.Sampling.TypicalP = ptr(float32(0.1)) },
	"sampling.repetition_penalty": func(r *pb.GenerateRequest) { r.Sampling.RepetitionPenalty = ptr(float32(5)) },
	"sampling.presence_penalty":   func(r *pb.GenerateRequest) { r.Sampling.PresencePenalty = ptr(float32(5)) },
	"sampling.frequency_penalty":  func(r *pb.GenerateRequest) { r.Sampling.FrequencyPenalty = ptr(float32(5)) },
	"sampling.penalty_window": func(r *pb.GenerateRequest) {
		r.Sampling.PresencePenalty, r.Sampling.PenaltyWindow = ptr(float32(5)), ptr(int32(20))
	},
	"sampling.logit_bias":         func(r *pb.GenerateRequest) { r.Sampling.LogitBias = map[int32]float32{400: 50} },
	"sampling.allowed_tokens.ids": func(r *pb.GenerateRequest) { r.Sampling.AllowedTokens = &pb.TokenIds{Ids: []uint32{300, 301}} },
	"sampling.seed":               func(r *pb.GenerateRequest) { r.Sampling.Seed = ptr(uint64(8)) },
	"sampling.num_sequences":      func(r *pb.GenerateRequest) { r.Sampling.NumSequences = ptr(int32(2)) },
	"stopping.max_tokens":         func(r *pb.GenerateRequest) { r.Stopping.MaxTokens = ptr(int32(3)) },
	"stopping.min_tokens": func(r *pb.GenerateRequest) {
		r.Stopping.StopTokenIds, r.Stopping.MinTokens = everyToken(), ptr(int32(5))
		r.Stopping.StopTokenIds = r.Stopping.StopTokenIds[:64]
	},
	"stopping.stop":           func(r *pb.GenerateRequest) { r.Stopping.Stop = []string{"a", "e"} },
	"stopping.stop_token_ids": func(r *pb.GenerateRequest) { r.Stopping.StopTokenIds = everyToken()[250:314] },
	"stopping.include_stop_in_output": func(r *pb.GenerateRequest) {
		r.Stopping.Stop, r.Stopping.IncludeStopInOutput = []string{"e"}, ptr(true)
	},
	"stopping.ignore_eos": func(r *pb.GenerateRequest) {
		r.Stopping.IgnoreEos = ptr(false)
		r.Sampling.LogitBias = map[int32]float32{0: 100, 1: 100}
	},
	"response.output_logprobs":   func(r *pb.GenerateRequest) { r.Response = &pb.ResponseOptions{OutputLogprobs: ptr(true)} },
	"response.output_candidates": func(r *pb.GenerateRequest) { r.Response = &pb.ResponseOptions{OutputCandidates: ptr(int32(2))} },
	"response.prompt_logprobs":   func(r *pb.GenerateRequest) { r.Response = &pb.ResponseOptions{PromptLogprobs: ptr(int32(0))} },
	"response.echo_prompt":       func(r *pb.GenerateRequest) { r.Response = &pb.ResponseOptions{EchoPrompt: ptr(true)} },
	"response.token_ids_only":    func(r *pb.GenerateRequest) { r.Response = &pb.ResponseOptions{TokenIdsOnly: ptr(true)} },
	"response.parts":             func(r *pb.GenerateRequest) { r.Response = &pb.ResponseOptions{Parts: ptr(true)} },
	"response.progress":          func(r *pb.GenerateRequest) { r.Response = &pb.ResponseOptions{Progress: ptr(true)} },
}

// chatOnly fields need a chat template. The shipped model has none, so requests with them fail.
var chatOnly = map[string]func(*pb.GenerateRequest){
	"chat.tools.name":                    chatting(withTool(&pb.Tool{Name: "f"})),
	"chat.tools.description":             chatting(withTool(&pb.Tool{Name: "f", Description: "d"})),
	"chat.tools.parameters":              chatting(withTool(&pb.Tool{Name: "f", Parameters: ptr("{}")})),
	"chat.tools.strict":                  chatting(withTool(&pb.Tool{Name: "f", Strict: ptr(true)})),
	"chat.tool_choice.mode":              chatting(withChoice(&pb.ToolChoice{Mode: pb.ToolMode_TOOL_MODE_NONE})),
	"chat.tool_choice.name":              chatting(withChoice(&pb.ToolChoice{Mode: pb.ToolMode_TOOL_MODE_REQUIRED, Name: ptr("f")})),
	"chat.tool_choice.parallel":          chatting(withChoice(&pb.ToolChoice{Parallel: ptr(false)})),
	"chat.tool_format":                   chatting(&pb.Chat{Messages: hello(), Tools: []*pb.Tool{{Name: "f"}}, ToolFormat: ptr("hermes")}),
	"chat.reasoning_budget":              chatting(&pb.Chat{Messages: hello(), Tools: []*pb.Tool{{Name: "f"}}, ToolFormat: ptr("hermes"), ReasoningBudget: ptr(uint32(3))}),
	"chat.messages.tool_calls.id":        chatting(withCall(&pb.ToolCall{Name: "f", Id: "1"})),
	"chat.messages.tool_calls.name":      chatting(withCall(&pb.ToolCall{Name: "f"})),
	"chat.messages.tool_calls.arguments": chatting(withCall(&pb.ToolCall{Name: "f", Arguments: `{"a":1}`})),
	"chat.messages.tool_call_id":         chatting(&pb.Chat{Messages: []*pb.ChatMessage{{Role: "tool", ToolCallId: ptr("1")}}}),
	"chat.messages.reasoning":            chatting(&pb.Chat{Messages: []*pb.ChatMessage{{Role: "assistant", Reasoning: ptr("hm")}}}),
	"chat.messages.role":                 chatting(&pb.Chat{Messages: []*pb.ChatMessage{{Role: "user"}}}),
	"chat.messages.content":              chatting(&pb.Chat{Messages: []*pb.ChatMessage{{Role: "user", Content: "hi"}}}),
	"chat.add_generation_prompt":         chatting(&pb.Chat{Messages: []*pb.ChatMessage{{Role: "user"}}, AddGenerationPrompt: ptr(false)}),
	"chat.template_kwargs.fields": chatting(&pb.Chat{Messages: []*pb.ChatMessage{{Role: "user"}},
		TemplateKwargs: &structpb.Struct{Fields: map[string]*structpb.Value{"a": structpb.NewBoolValue(true)}}}),
	"chat.template_name":            chatting(&pb.Chat{Messages: []*pb.ChatMessage{{Role: "user"}}, TemplateName: ptr("rag")}),
	"chat.parse_special_in_content": chatting(&pb.Chat{Messages: []*pb.ChatMessage{{Role: "user"}}, ParseSpecialInContent: ptr(true)}),
}

func hello() []*pb.ChatMessage { return []*pb.ChatMessage{{Role: "user", Content: "hello"}} }

func withTool(t *pb.Tool) *pb.Chat { return &pb.Chat{Messages: hello(), Tools: []*pb.Tool{t}} }

func withChoice(c *pb.ToolChoice) *pb.Chat {
	return &pb.Chat{Messages: hello(), Tools: []*pb.Tool{{Name: "f"}}, ToolChoice: c}
}

func withCall(c *pb.ToolCall) *pb.Chat {
	return &pb.Chat{Messages: []*pb.ChatMessage{{Role: "assistant", ToolCalls: []*pb.ToolCall{c}}}}
}

// silent fields change when and where a token is computed but not which token, or have no effect on
// this model. A refused value proves that such a field is read; other tests prove that it is used.
var silent = map[string]func(*pb.GenerateRequest){
	"fairness_id":  func(r *pb.GenerateRequest) { r.FairnessId = ptr("ten\nant") },
	"cache.salt":   func(r *pb.GenerateRequest) { r.Cache = &pb.CacheOptions{Salt: ptr(strings.Repeat("s", 129))} },
	"accepted_at":  func(r *pb.GenerateRequest) { r.AcceptedAt = &timestamppb.Timestamp{Nanos: -1} },
	"prompt_class": func(r *pb.GenerateRequest) { r.PromptClass = ptr(pb.KernelClass(99)) },
}

// unseen fields change when and where a token is computed and have no refused value. They must not
// change the transcript.
var unseen = map[string]func(*pb.GenerateRequest){
	"priority":                  func(r *pb.GenerateRequest) { r.Priority = ptr(int32(-5)) },
	"cache.bypass_prefix_cache": func(r *pb.GenerateRequest) { r.Cache = &pb.CacheOptions{BypassPrefixCache: ptr(true)} },
}

func chatting(c *pb.Chat) func(*pb.GenerateRequest) {
	return func(r *pb.GenerateRequest) {
		if r.Input = (&pb.GenerateRequest_Chat{Chat: c}); len(c.GetTools()) > 0 {
			r.Stopping.IgnoreEos = nil
		}
	}
}

func everyToken() []uint32 {
	ids := make([]uint32, 2048)
	for i := range ids {
		ids[i] = uint32(i)
	}
	return ids
}

// transcript returns what a client receives, without the parts that differ from call to call.
func transcript(o outcome) string {
	var b strings.Builder
	for _, e := range o.events {
		e = proto.Clone(e).(*pb.GenerateResponse)
		if f := e.GetFinished(); f != nil {
			f.Timings = nil
		}
		if s := e.GetStarted(); s != nil && s.GetRequestId() != "mine" {
			s.RequestId = ""
		}
		if e.GetTokens() != nil { // how tokens are grouped into events depends on the clock
			continue
		}
		raw, _ := protojson.Marshal(e)
		b.Write(raw)
	}
	fmt.Fprint(&b, o.ids, o.text, o.logprobs, o.err)
	return b.String()
}

func TestNoFieldOfARequestIsIgnored(t *testing.T) {
	w := start(t, cpuDevice(t), "stories")
	base := prompted("Once upon a time", 40)
	want := w.generate(t.Context(), t, base)
	require.NoError(t, want.err)
	require.Equal(t, transcript(want), transcript(w.generate(t.Context(), t, base)), "the same request gives the same answer")

	known := map[string]bool{}
	for _, path := range paths((&pb.GenerateRequest{}).ProtoReflect().Descriptor(), "") {
		known[path] = true
		change := changes[path]
		for _, more := range []map[string]func(*pb.GenerateRequest){chatOnly, silent, unseen} {
			if change == nil {
				change = more[path]
			}
		}
		require.NotNil(t, change, "field %s is new: say here what it changes", path)
		t.Run(path, func(t *testing.T) {
			in := proto.Clone(base).(*pb.GenerateRequest)
			change(in)
			got := w.generate(t.Context(), t, in)
			if unseen[path] != nil {
				require.Equal(t, transcript(want), transcript(got))
				return
			}
			if got.err == nil {
				require.NotEqual(t, transcript(want), transcript(got))
				return
			}
			reason := status.Convert(got.err).Message()
			leaf := path[strings.LastIndexByte(path, '.')+1:]
			switch {
			case chatOnly[path] != nil:
				require.Contains(t, reason, "chat template")
			case path == "model":
				require.Contains(t, reason, `"nobody"`)
			case strings.HasPrefix(path, "expect_"):
				require.Contains(t, reason, "expected")
			default:
				top, _, _ := strings.Cut(path, ".")
				require.True(t, strings.Contains(reason, leaf) || strings.Contains(reason, top), "%q names no %s", reason, path)
			}
		})
	}
	for path := range changes {
		require.True(t, known[path], "there is no field %s", path)
	}
}

// The walk above sets prompt_class and accepted_at to refused values; here they have valid ones.
func TestPromptClassChangesNoBitOnACPU(t *testing.T) {
	w := start(t, cpuDevice(t), "stories")
	in := prompted("Once upon a time there was", 12)
	in.Response = &pb.ResponseOptions{PromptLogprobs: ptr(int32(3)), OutputLogprobs: ptr(true)}
	prefill := w.generate(t.Context(), t, in)
	require.NoError(t, prefill.err)
	in.PromptClass = ptr(pb.KernelClass_KERNEL_CLASS_DECODE)
	decode := w.generate(t.Context(), t, in)
	require.NoError(t, decode.err)
	require.Equal(t, prefill.ids, decode.ids)
	require.Equal(t, bits(prefill), bits(decode))
	require.NotEmpty(t, bits(prefill))
}

func bits(o outcome) (all []uint32) {
	for _, d := range o.prompt {
		all = append(all, math.Float32bits(d.GetLogprob()))
	}
	for _, l := range o.logprobs {
		all = append(all, math.Float32bits(l))
	}
	return all
}

func TestEveryViolationIsListedAtOnce(t *testing.T) {
	w := start(t, cpuDevice(t), "stories")
	in := &pb.GenerateRequest{
		Model: "stories", Input: &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{}}, RequestId: ptr("a\nb"),
		Sampling: &pb.Sampling{
			Temperature: ptr(float32(math.NaN())), TopK: ptr(int32(-1)), TopP: ptr(float32(0)), MinP: ptr(float32(2)),
			TypicalP: ptr(float32(math.Inf(1))), RepetitionPenalty: ptr(float32(0)), PresencePenalty: ptr(float32(101)),
			FrequencyPenalty: ptr(float32(-101)), PenaltyWindow: ptr(int32(-2)), NumSequences: ptr(int32(17)),
			LogitBias: map[int32]float32{1: float32(math.NaN())}, AllowedTokens: &pb.TokenIds{},
		},
		Stopping: &pb.Stopping{MaxTokens: ptr(int32(-1)), MinTokens: ptr(int32(-1)), Stop: []string{""}},
		Response: &pb.ResponseOptions{OutputCandidates: ptr(int32(65)), PromptLogprobs: ptr(int32(-1))},
	}
	got := w.generate(t.Context(), t, in)
	require.Equal(t, codes.InvalidArgument, status.Code(got.err))
	require.Equal(t, []string{
		"request_id", "response.output_candidates", "response.prompt_logprobs", "sampling.allowed_tokens.ids",
		"sampling.frequency_penalty", "sampling.logit_bias[1]", "sampling.min_p", "sampling.num_sequences",
		"sampling.penalty_window", "sampling.presence_penalty", "sampling.repetition_penalty", "sampling.temperature",
		"sampling.top_k", "sampling.top_p", "sampling.typical_p", "stopping.max_tokens", "stopping.min_tokens",
		"stopping.stop[0]", "token_ids.ids",
	}, violated(got.err))
}

func violated(err error) (fields []string) {
	for _, v := range rpc.Violations(err) {
		fields = append(fields, v.Field)
	}
	slices.Sort(fields)
	return fields
}
