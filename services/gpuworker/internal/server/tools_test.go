package server

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/gpuworker/generate"
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/gpuworker/tools"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// shows are chat templates that show each format, and write what these tests look for.
var shows = map[string]string{
	"hermes":       `{#- <tool_call>{"name": , "arguments": } </think> #}`,
	"qwen3_coder":  `{#- <tool_call> <function= <parameter= </think> #}`,
	"harmony":      `{#- <|start|> <|channel|> <|message|> #}`,
	"gemma4":       `{#- <|channel> <channel|> <|tool_call>call: #}`,
	"llama3_json":  `{#- <|start_header_id|> "parameters" tools #}`,
	"mistral":      `{#- [THINK] [TOOL_CALLS] [ARGS] #}`,
	"mistral_json": `{#- [TOOL_CALLS] #}`,
}

const turnsWithTools = `{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{% for m in messages %}` + opens + `{{ m.role }}:{{ m.content }}` +
	`{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments.city }}{% endfor %}` + closes + `{% endfor %}`

// ends are how prompts of a format end the reasoning, so that answers are calls.
var ends = map[string]string{"hermes": "</think>", "qwen3_coder": "</think>", "gemma4": "<channel|>", "mistral": "[/THINK]"}

// startTools is a worker that has a model for each format.
func startTools(t *testing.T) *worker {
	t.Helper()
	w := start(t, simDevice(t, sim.Options{}))
	file, err := os.ReadFile(filepath.Join(w.dir, "stories.gguf"))
	require.NoError(t, err)
	for name, template := range shows {
		with := withTemplates(t, file, []string{"tokenizer.chat_template"}, []string{template + turnsWithTools + ends[name]})
		require.NoError(t, os.WriteFile(filepath.Join(w.dir, name+".gguf"), with, 0o600))
		_, _, err = w.manager.Load(t.Context(), name, model.Options{}, nil)
		require.NoError(t, err)
	}
	return w
}

const tripSchema = `{"type":"object","properties":{"city":{"enum":["Oslo","Rome"]},"days":{"type":"integer","minimum":1,"maximum":30},
	"sure":{"type":"boolean"}},"required":["city","days"],"additionalProperties":false}`

// calling is a conversation whose answer is a call.
func calling(model string, seed uint64) *pb.GenerateRequest {
	return &pb.GenerateRequest{
		Model: model, Sampling: &pb.Sampling{Seed: &seed}, Stopping: &pb.Stopping{MaxTokens: ptr(int32(300))},
		Input: &pb.GenerateRequest_Chat{Chat: &pb.Chat{
			Messages:   []*pb.ChatMessage{{Role: "user", Content: "Where to?"}},
			Tools:      []*pb.Tool{{Name: "trip", Description: "Plans it.", Parameters: ptr(tripSchema)}, {Name: "now", Parameters: ptr(`{"type":"object","properties":{},"additionalProperties":false}`)}},
			ToolChoice: &pb.ToolChoice{Mode: pb.ToolMode_TOOL_MODE_REQUIRED, Parallel: ptr(false)},
		}},
	}
}

// answered is a call, or text of one kind.
type answered struct {
	kind     pb.PartKind
	id, name string
	text     string
}

// answersOf joins the parts of an output.
func answersOf(t *testing.T, o outcome, output uint32) (all []answered) {
	t.Helper()
	for _, e := range o.events {
		tokens := e.GetTokens()
		if tokens == nil || tokens.GetOutputIndex() != output {
			continue
		}
		text := tokens.GetText()
		for _, p := range tokens.GetParts() {
			piece := text[:p.GetTextBytes()]
			text = text[p.GetTextBytes():]
			if n := len(all); n > 0 && all[n-1].kind == p.GetKind() && p.GetCall() == nil {
				all[n-1].text += piece
				continue
			}
			all = append(all, answered{p.GetKind(), p.GetCall().GetId(), p.GetCall().GetName(), piece})
		}
		require.Empty(t, text, "parts cover the text")
	}
	return all
}

// Conversations over every format have calls whose arguments the schema accepts, and whose ids are one's own.
func TestCallsAreValidInEveryFormat(t *testing.T) {
	w := startTools(t)
	compiler := jsonschema.NewCompiler()
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(tripSchema))
	require.NoError(t, err)
	require.NoError(t, compiler.AddResource("trip.json", doc))
	schema, ids := compiler.MustCompile("trip.json"), map[string]bool{}
	for name := range shows {
		ended := 0
		for seed := range uint64(44) {
			in := calling(name, seed)
			in.GetChat().Messages[0].Content += fmt.Sprint(seed) // tokens of the sim engine follow from the prompt more than from the seed
			in.GetChat().ToolChoice.Name = ptr("trip")
			got := w.generate(t.Context(), t, in)
			require.NoError(t, got.err)
			if got.finished[0].GetReason() != pb.FinishReason_FINISH_REASON_STOP {
				continue
			}
			ended++
			answers := answersOf(t, got, 0)
			call := answers[len(answers)-1]
			require.Equal(t, pb.PartKind_PART_KIND_TOOL_CALL, call.kind, name)
			require.Equal(t, "trip", call.name)
			require.False(t, ids[name+call.id], "ids of different streams differ")
			ids[name+call.id] = true
			value, err := jsonschema.UnmarshalJSON(strings.NewReader(call.text))
			require.NoError(t, err, call.text)
			require.NoError(t, schema.Validate(value), "%s: %s", name, call.text)
		}
		require.Greater(t, ended, 20, name)
	}
}

// A stream of calls that breaks after any token goes on with the parts and the ids that it would have had.
func TestCallsResumeAfterEveryToken(t *testing.T) {
	w := startTools(t)
	for name := range shows {
		var whole outcome
		var in *pb.GenerateRequest
		for seed := uint64(1); ; seed++ {
			in = calling(name, seed)
			in.GetChat().Messages[0].Content += fmt.Sprint(seed)
			in.GetChat().ToolChoice.Parallel = nil
			whole = w.generate(t.Context(), t, in)
			require.NoError(t, whole.err)
			if whole.finished[0].GetReason() == pb.FinishReason_FINISH_REASON_STOP && len(whole.ids[0]) < 200 {
				break
			}
		}
		want := answersOf(t, whole, 0)
		for k := range len(whole.ids[0]) {
			again := proto.Clone(in).(*pb.GenerateRequest)
			again.Resume = []*pb.Resume{{TokenIds: whole.ids[0][:k]}}
			got := w.generate(t.Context(), t, again)
			require.NoError(t, got.err, "%s after %d", name, k)
			require.Equal(t, whole.ids[0][k:], got.ids[0])
			require.True(t, strings.HasSuffix(whole.text[0], got.text[0]), "%s after %d", name, k)
			again.Resume[0] = delivered(whole, 0, k, got.text[0])
			require.NoError(t, w.generate(t.Context(), t, again).err)
			rest := answersOf(t, got, 0)
			for i := range rest { // its last parts are those of the whole, the first perhaps in part
				have, full := rest[len(rest)-1-i], want[len(want)-1-i]
				require.Equal(t, full.kind, have.kind)
				require.True(t, strings.HasSuffix(full.text, have.text))
				if have.name != "" {
					require.Equal(t, full, have, "%s after %d", name, k)
				}
			}
			require.Equal(t, whole.finished[0].GetUsage().GetReasoningTokens(), got.finished[0].GetUsage().GetReasoningTokens())
		}
	}
}

// Reasoning that has as many tokens as its budget ends with its tag, and the answer goes on. A stream that is resumed after
// any token goes on alike.
func TestReasoningEndsWithItsBudget(t *testing.T) {
	w := start(t, simDevice(t, sim.Options{}))
	file, err := os.ReadFile(filepath.Join(w.dir, "stories.gguf"))
	require.NoError(t, err)
	with := withTemplates(t, file, []string{"tokenizer.chat_template"}, []string{shows["hermes"] + turnsWithTools + "<think>"})
	require.NoError(t, os.WriteFile(filepath.Join(w.dir, "thinks.gguf"), with, 0o600))
	_, _, err = w.manager.Load(t.Context(), "thinks", model.Options{}, nil)
	require.NoError(t, err)
	for _, budget := range []uint32{0, 1, 9} {
		in := calling("thinks", uint64(budget))
		in.GetChat().Tools, in.GetChat().ToolChoice, in.GetChat().ReasoningBudget = nil, nil, &budget
		in.Response, in.Stopping.MaxTokens = &pb.ResponseOptions{Parts: ptr(true)}, ptr(int32(40))
		whole := w.generate(t.Context(), t, in)
		require.NoError(t, whole.err)
		answers, counted := answersOf(t, whole, 0), whole.finished[0].GetUsage().GetReasoningTokens()
		require.Equal(t, pb.PartKind_PART_KIND_CONTENT, answers[len(answers)-1].kind, "budget %d: %v", budget, answers)
		require.NotEmpty(t, answers[len(answers)-1].text)
		// The tag is text in this vocabulary, so its tokens count, and up to three that end a character.
		require.GreaterOrEqual(t, counted, budget)
		require.LessOrEqual(t, counted, budget+3+uint32(len("</think>")))
		for k := range whole.ids[0] {
			again := proto.Clone(in).(*pb.GenerateRequest)
			again.Resume = []*pb.Resume{{TokenIds: whole.ids[0][:k]}}
			got := w.generate(t.Context(), t, again)
			require.NoError(t, got.err, "budget %d after %d", budget, k)
			require.Equal(t, whole.ids[0][k:], got.ids[0], "budget %d after %d", budget, k)
		}
	}
}

func TestEarlierCallsReachTheTemplate(t *testing.T) {
	w := startTools(t)
	in := calling("mistral", 1).GetChat()
	in.Messages = append(in.Messages,
		&pb.ChatMessage{Role: "assistant", ToolCalls: []*pb.ToolCall{{Id: "call_1", Name: "trip", Arguments: `{"city":"Oslo"}`}}},
		&pb.ChatMessage{Role: "tool", ToolCallId: ptr("call_1"), Content: "fine"})
	out, err := w.infer.Tokenize(t.Context(), &pb.TokenizeRequest{Model: "mistral", Input: &pb.TokenizeRequest_Chat{Chat: in}})
	require.NoError(t, err)
	require.Equal(t, "tripnow"+opens+"user:Where to?"+closes+opens+"assistant:tripOslo"+closes+opens+"tool:fine"+closes+"[/THINK]", out.GetRendered())
	list, err := w.models.ListModels(t.Context(), &pb.ListModelsRequest{})
	require.NoError(t, err)
	for _, m := range list.GetModels() {
		if shows[m.GetName()] != "" {
			require.Equal(t, m.GetName(), m.GetCapabilities().GetToolFormat())
		}
	}
}

// A result has the name of its tool, of calls without an id too, and no other message has one.
func TestOnlyResultsHaveTheNameOfATool(t *testing.T) {
	var names []string
	for _, m := range messagesOf(&pb.Chat{Messages: []*pb.ChatMessage{
		{Role: "user"}, {Role: "assistant", ToolCalls: []*pb.ToolCall{{Name: "trip"}}}, {Role: "tool"}, {Role: "user"}, {Role: "system"},
	}}) {
		names = append(names, m.Name)
	}
	require.Equal(t, []string{"", "", "trip", "", ""}, names)
}

func TestToolRefusals(t *testing.T) {
	w := startTools(t)
	for name, tc := range map[string]struct {
		change        func(*pb.GenerateRequest)
		reason, field string
	}{
		"a name":        {func(in *pb.GenerateRequest) { in.GetChat().Tools[0].Name = "a b" }, reason.InvalidArgument, "chat.tools[0].name"},
		"two names":     {func(in *pb.GenerateRequest) { in.GetChat().Tools[1].Name = "trip" }, reason.InvalidArgument, "chat.tools[1].name"},
		"many tools":    {func(in *pb.GenerateRequest) { in.GetChat().Tools = make([]*pb.Tool, 129) }, reason.InvalidArgument, "chat.tools"},
		"a long schema": {func(in *pb.GenerateRequest) { in.GetChat().Tools[0].Parameters = ptr(strings.Repeat(" ", 65537)) }, reason.InvalidArgument, "chat.tools[0].parameters"},
		"many bytes": {func(in *pb.GenerateRequest) {
			in.GetChat().Tools[0].Description = strings.Repeat("x", 256<<10)
		}, reason.InvalidArgument, "chat.tools"},
		"no such tool":     {func(in *pb.GenerateRequest) { in.GetChat().ToolChoice.Name = ptr("x") }, reason.InvalidArgument, "chat.tool_choice.name"},
		"no mode":          {func(in *pb.GenerateRequest) { in.GetChat().ToolChoice.Mode = 9 }, reason.InvalidArgument, "chat.tool_choice.mode"},
		"a choice of none": {func(in *pb.GenerateRequest) { in.GetChat().Tools = nil }, reason.InvalidArgument, "chat.tool_choice"},
		"no parts":         {func(in *pb.GenerateRequest) { in.Response = &pb.ResponseOptions{Parts: ptr(false)} }, reason.InvalidArgument, "response.parts"},
		"ids only":         {func(in *pb.GenerateRequest) { in.Response = &pb.ResponseOptions{TokenIdsOnly: ptr(true)} }, reason.InvalidArgument, "response.token_ids_only"},
		"a budget without tags": {func(in *pb.GenerateRequest) {
			in.GetChat().ReasoningBudget, in.GetChat().ToolFormat = ptr(uint32(5)), ptr("harmony")
		}, reason.InvalidArgument, "chat.reasoning_budget"},
		"a large budget": {func(in *pb.GenerateRequest) { in.GetChat().ReasoningBudget = ptr(uint32(1 << 31)) }, reason.InvalidArgument, "chat.reasoning_budget"},
		"a budget without parts": {func(in *pb.GenerateRequest) {
			in.GetChat().Tools, in.GetChat().ToolChoice, in.GetChat().ReasoningBudget = nil, nil, ptr(uint32(5))
		}, reason.InvalidArgument, "chat.reasoning_budget"},
		"no format": {func(in *pb.GenerateRequest) { in.GetChat().ToolFormat = ptr("xml") }, reason.InvalidArgument, "chat.tool_format"},
		"arguments": {func(in *pb.GenerateRequest) {
			in.GetChat().Messages[0].ToolCalls = []*pb.ToolCall{{Name: "trip", Arguments: "[]"}}
		}, reason.InvalidArgument, "chat.messages[0].tool_calls[0].arguments"},
		"deep arguments": {func(in *pb.GenerateRequest) {
			deep := strings.Repeat(`{"a":`, 70) + "1" + strings.Repeat("}", 70)
			in.GetChat().Messages[0].ToolCalls = []*pb.ToolCall{{Name: "trip", Arguments: deep}}
		}, reason.InvalidArgument, "chat.messages[0].tool_calls[0].arguments"},
		"a schema": {func(in *pb.GenerateRequest) {
			in.GetChat().Tools[0].Parameters = ptr(`{"type":"object","properties":{"a":{"type":"x"}}}`)
		}, reason.InvalidGrammar, "chat.tools"},
		"a strict schema": {func(in *pb.GenerateRequest) {
			in.GetChat().Tools[0].Parameters, in.GetChat().Tools[0].Strict = ptr(`{"unevaluatedItems":false}`), ptr(true)
		}, reason.InvalidGrammar, "chat.tools"},
		"a list for arguments": {func(in *pb.GenerateRequest) { in.GetChat().Tools[0].Parameters = ptr(`{"type":"array"}`) }, reason.InvalidGrammar, "chat.tools"},
	} {
		t.Run(name, func(t *testing.T) {
			in := calling("hermes", 1)
			tc.change(in)
			got := w.generate(t.Context(), t, in)
			require.Equal(t, codes.InvalidArgument, status.Code(got.err), "%v", got.err)
			require.Equal(t, tc.reason, rpc.Reason(got.err))
			require.Contains(t, violated(got.err), tc.field)
		})
	}
	in := calling("hermes", 1)
	in.GetChat().Tools[0].Parameters = ptr(`{"type":"object","unevaluatedItems":false}`)
	require.Equal(t, []string{"#/tools/0/parameters/unevaluatedItems"}, w.generate(t.Context(), t, in).started.GetGuidedIgnored())
}

// An event that is cut in two has the parts of its tokens in each half, and a call begins with its token.
func TestCutEventsKeepTheirParts(t *testing.T) {
	whole := generate.Tokens{
		Rows: make([]engine.RowResult, 4), Text: "texty{}", TextBytes: []int{4, 1, 0, 2},
		Parts: []generate.Part{{Kind: tools.Content, Bytes: 5}, {Kind: tools.Call, Name: "f", Row: 2, Bytes: 2}},
	}
	for row, want := range [][2][]generate.Part{
		1: {{{Kind: tools.Content, Bytes: 4}}, {{Kind: tools.Content, Bytes: 1}, {Kind: tools.Call, Name: "f", Row: 1, Bytes: 2}}},
		2: {{{Kind: tools.Content, Bytes: 5}}, {{Kind: tools.Call, Name: "f", Bytes: 2}}},
		3: {{{Kind: tools.Content, Bytes: 5}, {Kind: tools.Call, Name: "f", Row: 2}}, {{Kind: tools.Call, Bytes: 2}}},
	} {
		if row == 0 {
			continue
		}
		head, rest := cut(whole, row)
		require.Equal(t, want, [2][]generate.Part{head.Parts, rest.Parts}, "%d", row)
		require.Equal(t, whole.Text, head.Text+rest.Text)
		require.Len(t, rest.Rows, 4-row)
	}
}
