package ollama

import (
	"encoding/json"
	"time"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/target"
	"github.com/millrace/millrace/services/gateway/internal/translate"
)

// ndjson is the content type of JSON objects, one a line.
const ndjson = "application/x-ndjson"

// part is an answer, or a part of one. Response is that of generate, Message that of chat.
type part struct {
	Model      string        `json:"model"`
	CreatedAt  time.Time     `json:"created_at"`
	Response   *string       `json:"response,omitempty"`
	Thinking   string        `json:"thinking,omitempty"` // of generate
	Message    *replyMessage `json:"message,omitempty"`
	Done       bool          `json:"done"`
	DoneReason string        `json:"done_reason,omitempty"`
	*metrics
	Millrace *translate.Origin `json:"millrace,omitempty"`
}

type replyMessage struct {
	Role      string      `json:"role"`
	Content   string      `json:"content"`
	Thinking  string      `json:"thinking,omitempty"`
	ToolCalls []replyCall `json:"tool_calls,omitempty"`
}

// metrics are counts, and durations in nanoseconds. Models are loaded before requests, which takes
// none of their time.
type metrics struct {
	TotalDuration      int64  `json:"total_duration"`
	LoadDuration       int64  `json:"load_duration"`
	PromptEvalCount    uint32 `json:"prompt_eval_count"`
	PromptEvalDuration int64  `json:"prompt_eval_duration"`
	EvalCount          uint32 `json:"eval_count"`
	EvalDuration       int64  `json:"eval_duration"`
}

// reply writes an answer.
type reply struct {
	begin   time.Time
	now     func() time.Time
	request *common
	chat    bool

	out     *httpapi.Stream
	started *pb.Started
	calls   int              // that were sent
	call    *target.ToolCall // the one that is under way; clients get calls whole
}

// answer answers a request. A request without input is a client's way to load a model before it
// needs it; the answer says whether the model serves.
func (d *Dialect) answer(x *httpapi.Exchange, in *pb.GenerateRequest, r *reply) error {
	if in.GetInput() == nil {
		if _, err := d.find(x, r.request.Model); err != nil {
			return err
		}
		p := r.part("", "", nil)
		p.Done, p.DoneReason = true, "load"
		return x.WriteJSON(p)
	}
	g, err := d.client.Generate(x.Context(), in)
	if err != nil {
		return paths.Failure(err)
	}
	if r.request.streams() {
		r.out = x.Stream(ndjson)
		return paths.Failure(g.Each(r.event))
	}
	a, err := target.Collect(g, 1)
	if err != nil {
		return paths.Failure(err)
	}
	r.started = a.Started
	o := &a.Outputs[0]
	return x.WriteJSON(r.last(r.part(o.Text, o.Reasoning, o.Calls), o.Finished))
}

// part returns a part of the answer with a text, reasoning and calls. Reasoning is left out if the client does not want it.
func (r *reply) part(text, reasoning string, calls []target.ToolCall) *part {
	p := &part{Model: r.request.Model, CreatedAt: r.now().UTC()}
	if r.request.Think != nil && !r.request.Think.on {
		reasoning = ""
	}
	if r.chat {
		p.Message = &replyMessage{"assistant", text, reasoning, replyCalls(calls, r.calls)}
		r.calls += len(calls)
	} else {
		p.Response, p.Thinking = &text, reasoning
	}
	return p
}

// last completes the last part of the answer.
func (r *reply) last(p *part, f *pb.Finished) *part {
	p.Done, p.DoneReason = true, "length"
	if f.GetReason() == pb.FinishReason_FINISH_REASON_STOP {
		p.DoneReason = "stop"
	}
	p.metrics = &metrics{
		TotalDuration: r.now().Sub(r.begin).Nanoseconds(), PromptEvalCount: r.started.GetPromptTokens(),
		PromptEvalDuration: f.GetTimings().GetPrefill().AsDuration().Nanoseconds(),
		EvalCount:          f.GetUsage().GetCompletionTokens(), EvalDuration: f.GetTimings().GetDecode().AsDuration().Nanoseconds(),
	}
	p.Millrace = translate.OriginOf(r.started, r.request.Options.Seed)
	return p
}

// event writes the objects of an event.
func (r *reply) event(e *pb.GenerateResponse) error {
	switch e := e.GetEvent().(type) {
	case *pb.GenerateResponse_Started:
		r.started = e.Started
	case *pb.GenerateResponse_Tokens:
		text, reasoning := "", ""
		var calls []target.ToolCall
		for _, run := range target.Runs(e.Tokens) {
			switch {
			case run.Call != nil:
				calls = append(calls, r.ended()...)
				r.call = &target.ToolCall{ID: run.Call.GetId(), Name: run.Call.GetName(), Arguments: run.Text}
			case run.Kind == pb.PartKind_PART_KIND_TOOL_CALL && r.call != nil:
				r.call.Arguments += run.Text
			case run.Kind == pb.PartKind_PART_KIND_REASONING:
				reasoning += run.Text
			default:
				text += run.Text
			}
		}
		if text != "" || calls != nil || reasoning != "" && (r.request.Think == nil || r.request.Think.on) {
			return r.write(r.part(text, reasoning, calls))
		}
	case *pb.GenerateResponse_Finished:
		if calls := r.ended(); calls != nil {
			if err := r.write(r.part("", "", calls)); err != nil {
				return err
			}
		}
		return r.write(r.last(r.part("", "", nil), e.Finished))
	}
	return nil
}

// ended returns the call that was under way, if one was.
func (r *reply) ended() []target.ToolCall {
	if r.call == nil {
		return nil
	}
	call := *r.call
	r.call = nil
	return []target.ToolCall{call}
}

func (r *reply) write(p *part) error {
	raw, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return r.out.Write(append(raw, '\n'))
}
