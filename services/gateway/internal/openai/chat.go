package openai

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/resume"
	"github.com/millrace/millrace/services/gateway/internal/strictjson"
	"github.com/millrace/millrace/services/gateway/internal/target"
	"github.com/millrace/millrace/services/gateway/internal/translate"
)

// chatRequest is the body of POST /v1/chat/completions.
type chatRequest struct {
	parameters
	Messages            []message `json:"messages"`
	MaxCompletionTokens *int32    `json:"max_completion_tokens"`
	Logprobs            *bool     `json:"logprobs"`
	TopLogprobs         *int32    `json:"top_logprobs"`
	ReasoningEffort     *string   `json:"reasoning_effort"`
	ParallelToolCalls   *bool     `json:"parallel_tool_calls"`
	Verbosity           *string   `json:"verbosity"`
	Store               *bool     `json:"store"`
	Modalities          []string  `json:"modalities"`

	// Extensions of vLLM.
	ChatTemplateKwargs   strictjson.Raw `json:"chat_template_kwargs"`
	AddGenerationPrompt  *bool          `json:"add_generation_prompt"`
	ContinueFinalMessage *bool          `json:"continue_final_message"`
	ThinkingTokenBudget  *uint32        `json:"thinking_token_budget"`

	Tools      []tool      `json:"tools"`
	ToolChoice *toolChoice `json:"tool_choice"`

	// Refused.
	Functions        strictjson.Raw `json:"functions"`
	FunctionCall     strictjson.Raw `json:"function_call"`
	Audio            strictjson.Raw `json:"audio"`
	Prediction       strictjson.Raw `json:"prediction"`
	WebSearchOptions strictjson.Raw `json:"web_search_options"`
	Moderation       strictjson.Raw `json:"moderation"`
	ChatTemplate     *string        `json:"chat_template"`
}

// message is one message of a conversation.
type message struct {
	Role             string         `json:"role"`
	Content          content        `json:"content"`
	Name             *string        `json:"name"`
	Refusal          *string        `json:"refusal"`
	Reasoning        *string        `json:"reasoning"`
	ReasoningContent *string        `json:"reasoning_content"`
	ToolCalls        []toolCall     `json:"tool_calls"`
	ToolCallID       *string        `json:"tool_call_id"`
	FunctionCall     strictjson.Raw `json:"function_call"`
	Audio            strictjson.Raw `json:"audio"`
}

// content is a text, or a list of parts.
type content struct {
	text  string
	parts []part
}

type part struct {
	Type       string         `json:"type"`
	Text       *string        `json:"text"`
	Refusal    *string        `json:"refusal"`
	ImageURL   strictjson.Raw `json:"image_url"`
	InputAudio strictjson.Raw `json:"input_audio"`
	File       strictjson.Raw `json:"file"`
}

// DecodeJSON implements strictjson.Value.
func (c *content) DecodeJSON(d *strictjson.Decoder) error {
	switch d.Kind() {
	case strictjson.String:
		return d.Decode(&c.text)
	case strictjson.Array:
		return d.Decode(&c.parts)
	default:
		return d.Errorf("is %s: must be a string or a list of parts", d.Kind())
	}
}

// chat answers POST /v1/chat/completions.
func (d *Dialect) chat(x *httpapi.Exchange) error {
	var r chatRequest
	if err := x.Decode(&r, nil); err != nil {
		return err
	}
	in, err := r.request(x)
	if err != nil {
		return err
	}
	answer, err := resume.Open(x, d.now(), r.Stream, r.outputs())
	if err != nil {
		return err
	}
	r.Seed = answer.Prepare(in, r.Seed)
	own := r.paths()
	own["response.output_candidates"] = "top_logprobs"
	if r.MaxCompletionTokens != nil {
		own["stopping.max_tokens"] = "max_completion_tokens"
	}
	g, err := d.start(x, in, own)
	if err != nil {
		return err
	}
	reply := &chatReply{id: "chatcmpl-" + answer.Name(), created: answer.Created(), request: &r, pieces: d.piecesOf(x, r.Model), out: answer}
	if r.Stream {
		return failure(reply.stream(g), own)
	}
	a, err := target.Collect(g, r.outputs())
	if err != nil {
		return failure(err, own)
	}
	return reply.whole(x, a)
}

// request returns the contract's request.
func (r *chatRequest) request(x *httpapi.Exchange) (*pb.GenerateRequest, error) {
	if err := r.refuse(x); err != nil {
		return nil, err
	}
	in, err := r.parameters.request(x)
	if err != nil {
		return nil, err
	}
	if most := r.MaxCompletionTokens; most != nil {
		if r.MaxTokens != nil && *r.MaxTokens != *most {
			return nil, httpapi.Invalid("max_tokens", "is %d, and max_completion_tokens is %d: send one of them", *r.MaxTokens, *most)
		}
		in.Stopping.MaxTokens = most
	}
	chat, err := r.conversation(x)
	if err != nil {
		return nil, err
	}
	if err := r.tools(chat); err != nil {
		return nil, err
	}
	in.Input = &pb.GenerateRequest_Chat{Chat: chat}
	logprobs := r.Logprobs != nil && *r.Logprobs
	if r.TopLogprobs != nil && !logprobs {
		return nil, httpapi.Invalid("top_logprobs", "is set, and logprobs is not true")
	}
	if logprobs {
		in.Response = &pb.ResponseOptions{OutputLogprobs: r.Logprobs, OutputCandidates: r.TopLogprobs}
	}
	translate.WantParts(in)
	return in, nil
}

// refuse refuses fields that ask for features which the servers lack.
func (r *chatRequest) refuse(x *httpapi.Exchange) error {
	const tools = "tools and tool_choice are their newer names: send those"
	for _, f := range []struct {
		param string
		set   bool
		text  string
	}{
		{"functions", r.Functions != nil, tools}, {"function_call", r.FunctionCall != nil, tools},
		{"audio", r.Audio != nil, "the servers generate text only: leave it out"},
		{"modalities", slices.ContainsFunc(r.Modalities, func(m string) bool { return m != "text" }), "the servers generate text only: leave it out"},
		{"prediction", r.Prediction != nil, "the servers have no predicted outputs: leave it out"},
		{"web_search_options", r.WebSearchOptions != nil, "the servers search nothing: leave it out"},
		{"moderation", r.Moderation != nil, "the servers have no moderation: leave it out"},
		{"store", r.Store != nil && *r.Store, "the gateway stores nothing: leave it out"},
		{"chat_template", r.ChatTemplate != nil, "the template is that of the model: leave it out"},
		{"continue_final_message", r.ContinueFinalMessage != nil && *r.ContinueFinalMessage, "a message cannot be continued: leave it out"},
	} {
		if f.set {
			return httpapi.Unsupported(f.param, "is not supported: %s", f.text)
		}
	}
	for _, f := range []struct {
		param string
		set   bool
	}{{"parallel_tool_calls", r.ParallelToolCalls != nil && len(r.Tools) == 0}, {"verbosity", r.Verbosity != nil}} {
		if f.set {
			if err := x.Skip(f.param); err != nil {
				return err
			}
		}
	}
	return nil
}

// conversation returns the contract's chat.
func (r *chatRequest) conversation(x *httpapi.Exchange) (*pb.Chat, error) {
	if len(r.Messages) == 0 {
		return nil, httpapi.Invalid("messages", "is empty: send at least one message")
	}
	chat := &pb.Chat{
		AddGenerationPrompt: r.AddGenerationPrompt, ReasoningBudget: r.ThinkingTokenBudget, Messages: make([]*pb.ChatMessage, len(r.Messages)),
	}
	for i := range r.Messages {
		m, err := r.Messages[i].translate(x, "messages["+strconv.Itoa(i)+"]")
		if err != nil {
			return nil, err
		}
		chat.Messages[i] = m
	}
	return chat, r.kwargs(chat)
}

// maxKwargs bounds the bytes of template variables before they are decoded. The contract accepts 64
// KiB of texts.
const maxKwargs = 256 << 10

// kwargs sets the variables of the template.
func (r *chatRequest) kwargs(chat *pb.Chat) error {
	const param = "chat_template_kwargs"
	if r.ChatTemplateKwargs != nil {
		if len(r.ChatTemplateKwargs) > maxKwargs {
			return httpapi.Invalid(param, "has %d bytes: at most %d are accepted", len(r.ChatTemplateKwargs), maxKwargs)
		}
		chat.TemplateKwargs = &structpb.Struct{}
		if err := protojson.Unmarshal(r.ChatTemplateKwargs, chat.TemplateKwargs); err != nil {
			return httpapi.Invalid(param, "is not an object of template variables")
		}
	}
	if r.ReasoningEffort == nil {
		return nil
	}
	// A template that does not read the variable renders as without it.
	if chat.TemplateKwargs == nil {
		chat.TemplateKwargs = &structpb.Struct{}
	}
	fields := maps.Clone(chat.TemplateKwargs.GetFields())
	if fields == nil {
		fields = map[string]*structpb.Value{}
	}
	if _, set := fields["reasoning_effort"]; !set {
		fields["reasoning_effort"] = structpb.NewStringValue(*r.ReasoningEffort)
	}
	chat.TemplateKwargs.Fields = fields
	return nil
}

// translate returns the contract's message. path is that of m.
func (m *message) translate(x *httpapi.Exchange, path string) (*pb.ChatMessage, error) {
	if m.Role == "" {
		return nil, httpapi.Invalid(path+".role", "is missing")
	}
	for _, f := range []struct {
		param string
		set   bool
		text  string
	}{
		{".function_call", m.FunctionCall != nil, "is not supported: tool_calls is its newer name: send that"}, {".audio", m.Audio != nil, "is not supported: the servers generate text only"},
		{".refusal", m.Refusal != nil, "is not supported: send the text of the refusal as content"},
	} {
		if f.set {
			return nil, httpapi.Unsupported(path+f.param, "%s", f.text)
		}
	}
	if m.Name != nil {
		if err := x.Skip(path + ".name"); err != nil {
			return nil, err
		}
	}
	text, err := m.Content.join(path + ".content")
	if err != nil {
		return nil, err
	}
	role := m.Role
	if role == "developer" { // OpenAI's later name for system, which no template of the supported models has
		role = "system"
	}
	out := &pb.ChatMessage{Role: role, Content: text, ToolCallId: m.ToolCallID, Reasoning: m.ReasoningContent}
	if out.Reasoning == nil {
		out.Reasoning = m.Reasoning
	}
	out.ToolCalls, err = calls(m.ToolCalls, path+".tool_calls")
	return out, err
}

// join returns the text. Parts are joined by line ends.
func (c *content) join(path string) (string, error) {
	if c.parts == nil {
		return c.text, nil
	}
	texts := make([]string, len(c.parts))
	for i, p := range c.parts {
		at := path + "[" + strconv.Itoa(i) + "]"
		if p.Type != "text" {
			return "", httpapi.Unsupported(at, "is a part of type %.32q, which is not supported: the models read text only", p.Type)
		}
		if p.Text == nil {
			return "", httpapi.Invalid(at+".text", "is missing")
		}
		texts[i] = *p.Text
	}
	return strings.Join(texts, "\n"), nil
}
