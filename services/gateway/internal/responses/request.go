package responses

import (
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/openai"
	"github.com/millrace/millrace/services/gateway/internal/strictjson"
	"github.com/millrace/millrace/services/gateway/internal/target"
	"github.com/millrace/millrace/services/gateway/internal/translate"
)

// Dialect is OpenAI's responses API over the servers of a client.
type Dialect struct {
	*openai.Dialect // of errors
	client          *target.Client
	now             func() time.Time
}

// New returns the dialect.
func New(client *target.Client) *Dialect {
	return &Dialect{openai.New(client), client, time.Now}
}

// Routes implements httpapi.Dialect.
func (d *Dialect) Routes() []httpapi.Route {
	return []httpapi.Route{{Pattern: "POST /v1/responses", Handle: d.respond}}
}

var _ httpapi.Dialect = (*Dialect)(nil)

// request is the body of POST /v1/responses. A nil field is unset.
type request struct {
	Model            string            `json:"model"`
	Input            input             `json:"input"`
	Instructions     *string           `json:"instructions"`
	MaxOutputTokens  *int32            `json:"max_output_tokens"`
	Temperature      *float32          `json:"temperature"`
	TopP             *float32          `json:"top_p"`
	Metadata         map[string]string `json:"metadata"`
	User             *string           `json:"user"`
	SafetyIdentifier *string           `json:"safety_identifier"`
	PromptCacheKey   *string           `json:"prompt_cache_key"`
	ServiceTier      *string           `json:"service_tier"`
	Stream           bool              `json:"stream"`
	StreamOptions    *streamOptions    `json:"stream_options"`
	Reasoning        *reasoning        `json:"reasoning"`
	Text             *textOptions      `json:"text"`
	Tools            []tool            `json:"tools"`
	ToolChoice       *toolChoice       `json:"tool_choice"`
	Include          []string          `json:"include"`
	Truncation       *string           `json:"truncation"`
	TopLogprobs      *int32            `json:"top_logprobs"`
	Store            *bool             `json:"store"`
	Background       *bool             `json:"background"`

	// Extensions: Seed repeats an answer, see the field millrace of answers.
	Seed              *translate.Seed `json:"seed"`
	TopK              *int32          `json:"top_k"`
	MinP              *float32        `json:"min_p"`
	RepetitionPenalty *float32        `json:"repetition_penalty"`
	PresencePenalty   *float32        `json:"presence_penalty"`
	FrequencyPenalty  *float32        `json:"frequency_penalty"`
	Timeout           *float64        `json:"timeout"`

	// Skipped.
	ParallelToolCalls *bool          `json:"parallel_tool_calls"`
	MaxToolCalls      *int64         `json:"max_tool_calls"`
	CacheRetention    *string        `json:"prompt_cache_retention"`
	CacheOptions      strictjson.Raw `json:"prompt_cache_options"`
	ContextManagement strictjson.Raw `json:"context_management"`
	ClientMetadata    strictjson.Raw `json:"client_metadata"` // Codex sends it
	AccessPrograms    strictjson.Raw `json:"access_programs"`

	// Refused.
	PreviousResponseID *string        `json:"previous_response_id"`
	Conversation       strictjson.Raw `json:"conversation"`
	Prompt             strictjson.Raw `json:"prompt"`
	Moderation         strictjson.Raw `json:"moderation"`
	Image              strictjson.Raw `json:"image"`
}

type streamOptions struct {
	IncludeObfuscation *bool `json:"include_obfuscation"`
}

type reasoning struct {
	Effort          *string `json:"effort"`
	Summary         *string `json:"summary"`
	GenerateSummary *string `json:"generate_summary"`
	Context         *string `json:"context"`
	Mode            *string `json:"mode"`
}

type textOptions struct {
	Format    *translate.Format `json:"format"`
	Verbosity *string           `json:"verbosity"`
}

const (
	noState = "the gateway stores nothing: send the whole conversation as input"
	// logprobs is an element of include.
	logprobs = "message.output_text.logprobs"
)

// refuse refuses fields that ask for features which the servers lack.
func (r *request) refuse() error {
	return translate.Refuse(
		translate.Field{Param: "store", Set: r.Store != nil && *r.Store, Why: "the gateway stores nothing: leave it out"},
		translate.Field{Param: "previous_response_id", Set: r.PreviousResponseID != nil, Why: noState},
		translate.Field{Param: "conversation", Set: r.Conversation != nil, Why: noState},
		translate.Field{Param: "background", Set: r.Background != nil && *r.Background, Why: "the gateway stores nothing: leave it out"},
		translate.Field{Param: "prompt", Set: r.Prompt != nil, Why: "the gateway stores no prompts: send instructions and input"},
		translate.Field{Param: "top_logprobs", Set: r.TopLogprobs != nil && *r.TopLogprobs != 0, Why: "POST /v1/chat/completions returns logprobs"},
		translate.Field{Param: "include", Set: slices.Contains(r.Include, logprobs), Why: "POST /v1/chat/completions returns logprobs"},
		translate.Field{Param: "moderation", Set: r.Moderation != nil, Why: "the servers have no moderation: leave it out"},
		translate.Field{Param: "image", Set: r.Image != nil, Why: "the servers generate text only: leave it out"},
	)
}

// skip records fields without effect. Tools that are no functions are among them, those that OpenAI's
// own servers run and free-form ones, because Codex sends them to every server.
func (r *request) skip(x *httpapi.Exchange) error {
	reason, text := r.Reasoning, r.Text
	if reason == nil {
		reason = &reasoning{}
	}
	if text == nil {
		text = &textOptions{}
	}
	functions := 0
	for i, t := range r.Tools {
		if t.function != nil {
			functions++
			continue
		}
		if err := x.Skip("tools[" + strconv.Itoa(i) + "]"); err != nil {
			return err
		}
	}
	for i := range r.Include {
		if err := x.Skip("include[" + strconv.Itoa(i) + "]"); err != nil {
			return err
		}
	}
	return translate.Skip(x,
		translate.Field{Param: "parallel_tool_calls", Set: r.ParallelToolCalls != nil && functions == 0}, translate.Field{Param: "max_tool_calls", Set: r.MaxToolCalls != nil},
		translate.Field{Param: "reasoning.summary", Set: reason.Summary != nil}, translate.Field{Param: "reasoning.generate_summary", Set: reason.GenerateSummary != nil},
		translate.Field{Param: "reasoning.context", Set: reason.Context != nil}, translate.Field{Param: "reasoning.mode", Set: reason.Mode != nil},
		translate.Field{Param: "text.verbosity", Set: text.Verbosity != nil},
		translate.Field{Param: "truncation", Set: r.Truncation != nil && *r.Truncation != "disabled"},
		translate.Field{Param: "prompt_cache_retention", Set: r.CacheRetention != nil}, translate.Field{Param: "prompt_cache_options", Set: r.CacheOptions != nil},
		translate.Field{Param: "context_management", Set: r.ContextManagement != nil}, translate.Field{Param: "client_metadata", Set: r.ClientMetadata != nil},
		translate.Field{Param: "access_programs", Set: r.AccessPrograms != nil},
		translate.Field{Param: "stream_options.include_obfuscation", Set: r.StreamOptions != nil && r.StreamOptions.IncludeObfuscation != nil && *r.StreamOptions.IncludeObfuscation},
	)
}

// fields are the JSON paths of fields of the contract whose last name differs.
var fields = map[string]string{
	"stopping.max_tokens": "max_output_tokens", "priority": "service_tier", "chat": "input", "chat.template_kwargs": "reasoning.effort",
	translate.SchemaField: "text.format.schema",
}

// tenant returns the path of the field that names the tenant.
func (r *request) tenant() string {
	if r.SafetyIdentifier != nil && *r.SafetyIdentifier != "" {
		return "safety_identifier"
	}
	return "user"
}

// translate returns the contract's request and its paths.
func (r *request) translate(x *httpapi.Exchange) (*pb.GenerateRequest, translate.Paths, error) {
	paths := translate.Paths{Fields: []map[string]string{{"fairness_id": r.tenant()}, fields}}
	if r.Model == "" {
		return nil, paths, httpapi.Invalid("model", "is missing: GET /v1/models lists the models")
	}
	x.Annotate("model", r.Model)
	if err := r.refuse(); err != nil {
		return nil, paths, err
	}
	if err := r.skip(x); err != nil {
		return nil, paths, err
	}
	if r.Timeout != nil {
		if err := x.SetTimeout(*r.Timeout, "timeout"); err != nil {
			return nil, paths, err
		}
	}
	if r.PromptCacheKey != nil {
		x.SetRoutingKey(*r.PromptCacheKey)
	}
	if n := r.MaxOutputTokens; n != nil && *n < 1 {
		return nil, paths, httpapi.Invalid("max_output_tokens", "is %d: must be at least 1", *n)
	}
	chat, messages, err := r.chat(x)
	if err != nil {
		return nil, paths, err
	}
	paths.Messages = messages
	if err := r.functions(chat); err != nil {
		return nil, paths, err
	}
	if r.Reasoning != nil && r.Reasoning.Effort != nil {
		// A template that does not read the variable renders as without it.
		chat.TemplateKwargs = &structpb.Struct{Fields: map[string]*structpb.Value{"reasoning_effort": structpb.NewStringValue(*r.Reasoning.Effort)}}
	}
	r.Seed = r.Seed.OrDrawn()
	in := &pb.GenerateRequest{
		RequestId: &x.ID, Model: r.Model, Input: &pb.GenerateRequest_Chat{Chat: chat}, Sampling: &pb.Sampling{
			Temperature: r.Temperature, TopP: r.TopP, TopK: r.TopK, MinP: r.MinP, RepetitionPenalty: r.RepetitionPenalty,
			PresencePenalty: r.PresencePenalty, FrequencyPenalty: r.FrequencyPenalty, Seed: &r.Seed.Bits,
		},
		Stopping: &pb.Stopping{MaxTokens: r.MaxOutputTokens},
	}
	if r.Text != nil && r.Text.Format != nil {
		if in.Guided, err = r.Text.Format.Guided("text.format.type", "text.format.schema"); err != nil {
			return nil, paths, err
		}
	}
	translate.WantParts(in)
	translate.SetTenant(in, r.SafetyIdentifier, r.User)
	return in, paths, translate.SetPriority(in, r.ServiceTier)
}
