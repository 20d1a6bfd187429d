package responses

import (
	"encoding/json"
	"net/http"
	"slices"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/resume"
	"github.com/millrace/millrace/services/gateway/internal/target"
	"github.com/millrace/millrace/services/gateway/internal/translate"
)

// respond answers POST /v1/responses.
func (d *Dialect) respond(x *httpapi.Exchange) error {
	var r request
	if err := x.Decode(&r, nil); err != nil {
		return err
	}
	in, paths, err := r.translate(x)
	if err != nil {
		return err
	}
	out, err := resume.Open(x, d.now(), r.Stream, 1)
	if err != nil {
		return err
	}
	r.Seed = out.Prepare(in, r.Seed)
	g, err := translate.Start(x, d.client, in, r.tenant())
	if err != nil {
		return paths.Failure(err)
	}
	reply := &reply{
		request: &r, now: func() int64 { return d.now().Unix() }, answer: newAnswer(&r, out.Name(), out.Created()), name: out.Name(), out: out,
	}
	if r.Stream {
		return paths.Failure(reply.stream(x, g))
	}
	a, err := target.Collect(g, 1)
	if err != nil {
		return paths.Failure(err)
	}
	reply.fill(&a.Outputs[0])
	reply.begin(a.Started)
	reply.finish(a.Outputs[0].Finished)
	return x.WriteJSON(reply.answer)
}

// answer is a response. Fields that are always null or empty are those of features that the servers
// do not have; the published schemas require them.
type answer struct {
	ID                 string            `json:"id"`
	Object             string            `json:"object"`
	CreatedAt          int64             `json:"created_at"`
	CompletedAt        *int64            `json:"completed_at"`
	Status             string            `json:"status"`
	Error              *failure          `json:"error"`
	IncompleteDetails  *details          `json:"incomplete_details"`
	Instructions       *string           `json:"instructions"`
	Model              string            `json:"model"`
	Output             []any             `json:"output"`
	Usage              usage             `json:"usage"` // so far: OpenAI's schema has no null here, and Open Responses' needs the field
	Temperature        float32           `json:"temperature"`
	TopP               float32           `json:"top_p"`
	PresencePenalty    float32           `json:"presence_penalty"`
	FrequencyPenalty   float32           `json:"frequency_penalty"`
	MaxOutputTokens    *int32            `json:"max_output_tokens"`
	Metadata           map[string]string `json:"metadata"`
	User               string            `json:"user"` // the same
	SafetyIdentifier   *string           `json:"safety_identifier"`
	PromptCacheKey     *string           `json:"prompt_cache_key"`
	ServiceTier        string            `json:"service_tier"`
	Reasoning          effort            `json:"reasoning"`
	Text               answerText        `json:"text"`
	Tools              []answerTool      `json:"tools"`
	ToolChoice         any               `json:"tool_choice"`
	ParallelToolCalls  bool              `json:"parallel_tool_calls"`
	MaxToolCalls       *int              `json:"max_tool_calls"`
	TopLogprobs        int               `json:"top_logprobs"`
	Truncation         string            `json:"truncation"`
	PreviousResponseID *string           `json:"previous_response_id"`
	AccessPrograms     *struct{}         `json:"access_programs"`
	Store              bool              `json:"store"`
	Background         bool              `json:"background"`
	Millrace           *translate.Origin `json:"millrace"`
}

// failure is why a response failed in mid-stream. Code is one of the published codes, and Reason a
// word of package reason.
type failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Reason  string `json:"reason"`
}

type details struct {
	Reason string `json:"reason"`
}

type usage struct {
	InputTokens   uint32        `json:"input_tokens"`
	InputDetails  inputDetails  `json:"input_tokens_details"`
	OutputTokens  uint32        `json:"output_tokens"`
	OutputDetails outputDetails `json:"output_tokens_details"`
	TotalTokens   uint32        `json:"total_tokens"`
}

type inputDetails struct {
	CachedTokens     uint32 `json:"cached_tokens"`
	CacheWriteTokens uint32 `json:"cache_write_tokens"`
}

type outputDetails struct {
	ReasoningTokens uint32 `json:"reasoning_tokens"`
}

type effort struct {
	Effort  *string `json:"effort"`
	Summary *string `json:"summary"`
}

type answerText struct {
	Format answerFormat `json:"format"`
}

type answerFormat struct {
	Type        string          `json:"type"`
	Name        *string         `json:"name,omitempty"`
	Description *string         `json:"description,omitempty"`
	Schema      json.RawMessage `json:"schema,omitempty"`
	Strict      *bool           `json:"strict,omitempty"`
}

// Values of status.
const (
	inProgress = "in_progress"
	completed  = "completed"
	incomplete = "incomplete"
	failed     = "failed"
)

// newAnswer returns the answer to a request before it begins.
func newAnswer(r *request, id string, now int64) *answer {
	a := &answer{
		ID: "resp_" + id, Object: "response", CreatedAt: now, Status: inProgress, Instructions: r.Instructions, Model: r.Model,
		Output: []any{}, Temperature: 1, TopP: 1, MaxOutputTokens: r.MaxOutputTokens, Metadata: r.Metadata,
		SafetyIdentifier: r.SafetyIdentifier, PromptCacheKey: r.PromptCacheKey, ServiceTier: "default", Text: answerText{answerFormat{Type: "text"}},
		Tools: r.answerTools(), ToolChoice: r.answerChoice(), ParallelToolCalls: r.ParallelToolCalls == nil || *r.ParallelToolCalls, Truncation: "disabled",
	}
	if a.Metadata == nil {
		a.Metadata = map[string]string{}
	}
	if r.ServiceTier != nil && *r.ServiceTier != "auto" {
		a.ServiceTier = *r.ServiceTier
	}
	if r.User != nil {
		a.User = *r.User
	}
	if r.Text != nil && r.Text.Format != nil {
		f := r.Text.Format
		a.Text.Format = answerFormat{f.Type, f.Name, f.Description, slices.Clone(json.RawMessage(f.Schema)), f.Strict}
	}
	if r.Reasoning != nil {
		a.Reasoning.Effort = r.Reasoning.Effort
	}
	for _, number := range []struct{ to, from *float32 }{
		{&a.Temperature, r.Temperature}, {&a.TopP, r.TopP}, {&a.PresencePenalty, r.PresencePenalty}, {&a.FrequencyPenalty, r.FrequencyPenalty},
	} {
		if number.from != nil {
			*number.to = *number.from
		}
	}
	return a
}

// reply fills and writes an answer.
type reply struct {
	request *request
	now     func() int64 // Unix time
	answer  *answer
	name    string // that ids of items are made of
	items   []*outputItem
	started *pb.Started

	out    *resume.Answer
	buffer []byte
}

// begin sets the fields that the start of a generation has.
func (r *reply) begin(s *pb.Started) {
	r.started = s
	r.answer.Usage.InputTokens, r.answer.Usage.InputDetails.CachedTokens = s.GetPromptTokens(), s.GetCachedTokens()
	r.count(0)
	r.answer.Millrace = translate.OriginOf(s, r.request.Seed)
}

// count sets the tokens of the output.
func (r *reply) count(tokens uint32) {
	u := &r.answer.Usage
	u.OutputTokens, u.TotalTokens = tokens, u.InputTokens+tokens
}

// finish completes the answer.
func (r *reply) finish(f *pb.Finished) {
	a := r.answer
	if a.Status = completed; f.GetReason() != pb.FinishReason_FINISH_REASON_STOP {
		a.Status, a.IncompleteDetails = incomplete, &details{"max_output_tokens"}
	} else {
		at := r.now()
		a.CompletedAt = &at
	}
	a.Output = r.output(a.Status)
	r.count(f.GetUsage().GetCompletionTokens())
	a.Usage.OutputDetails.ReasoningTokens = f.GetUsage().GetReasoningTokens()
}

// fail completes the answer of a generation that failed in the middle.
func (r *reply) fail(f *httpapi.Failure) {
	code := "server_error"
	switch {
	case f.Status == http.StatusTooManyRequests:
		code = "rate_limit_exceeded"
	case f.Status < http.StatusInternalServerError:
		code = "invalid_prompt"
	}
	r.answer.Status, r.answer.Error = failed, &failure{code, f.Message, f.Reason}
	r.answer.Output = r.output(incomplete)
}
