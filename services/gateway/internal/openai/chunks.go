package openai

import (
	"encoding/json"
	"strconv"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/resume"
	"github.com/millrace/millrace/services/gateway/internal/target"
	"github.com/millrace/millrace/services/gateway/internal/translate"
)

// done ends a stream that has succeeded.
const done = "data: [DONE]\n\n"

// chatReply writes the answer to a chat request.
type chatReply struct {
	id      string
	created int64
	request *chatRequest
	pieces  *pieces
	out     *resume.Answer

	started *pb.Started
	head    []byte // of every chunk, up to its choices
	tail    []byte // of every chunk that has a choice
	buffer  []byte
	usage   pb.Usage
	called  map[uint32]bool // outputs with a call
}

// stream writes the events of a generation.
func (r *chatReply) stream(g *target.Generation) error {
	r.tail = []byte("]}\n\n")
	if r.request.includeUsage() {
		r.tail = []byte(`],"usage":null}` + "\n\n")
	}
	if err := r.out.Each(g, r.event); err != nil {
		return err
	}
	return r.end()
}

// event writes the chunks of an event.
func (r *chatReply) event(e *pb.GenerateResponse) error {
	switch e := e.GetEvent().(type) {
	case *pb.GenerateResponse_Started:
		return r.begin(e.Started)
	case *pb.GenerateResponse_Tokens:
		return r.tokens(e.Tokens)
	case *pb.GenerateResponse_Finished:
		r.usage.CompletionTokens += e.Finished.GetUsage().GetCompletionTokens()
		r.usage.ReasoningTokens += e.Finished.GetUsage().GetReasoningTokens()
		b := append(r.choice(e.Finished.GetOutputIndex()), `"delta":{},"logprobs":null,"finish_reason":"`...)
		b = append(append(b, chatFinishReason(e.Finished, r.called[e.Finished.GetOutputIndex()])...), `"}`...)
		r.out.Step(int(e.Finished.GetOutputIndex()), r.chunk(b))
	}
	return nil
}

// begin writes the first chunk of each output, or after a change of class one that says so.
func (r *chatReply) begin(s *pb.Started) error {
	first := r.started == nil
	r.started = s
	r.usage.PromptTokens, r.usage.CachedTokens = s.GetPromptTokens(), s.GetCachedTokens()
	b := r.head[:0]
	b = append(b, `data: {"id":`...)
	b = httpapi.AppendString(b, r.id)
	b = append(b, `,"object":"chat.completion.chunk","created":`...)
	b = strconv.AppendInt(b, r.created, 10)
	b = append(b, `,"model":`...)
	b = httpapi.AppendString(b, r.request.Model)
	b = append(b, `,"system_fingerprint":"`...)
	b = append(b, translate.Fingerprint(s)...)
	b = append(b, `",`...)
	r.head = b
	where, err := json.Marshal(translate.OriginOf(s, r.request.Seed))
	if err != nil {
		return err
	}
	delta := "{}"
	if first {
		delta = `{"role":"assistant","content":""}`
	}
	for i := range r.request.outputs() {
		b := append(append(append(append(r.buffer[:0], r.head...), `"millrace":`...), where...), `,"choices":[{"index":`...)
		b = append(append(strconv.AppendInt(b, int64(i), 10), `,"delta":`...), delta...)
		r.out.Step(i, r.chunk(append(b, `,"logprobs":null,"finish_reason":null}`...)))
	}
	return nil
}

// choice begins a chunk of an output.
func (r *chatReply) choice(output uint32) []byte {
	b := append(append(r.buffer[:0], r.head...), `"choices":[{"index":`...)
	return append(strconv.AppendUint(b, uint64(output), 10), ',')
}

// tokens writes the chunk of generated tokens. Tokens that have no text yet have none, unless the
// client wants their logprobs.
func (r *chatReply) tokens(t *pb.Tokens) error {
	runs := target.Runs(t)
	if len(runs) == 0 && len(t.GetDetails()) == 0 {
		return nil
	}
	for _, run := range runs {
		if run.Call != nil {
			if r.called == nil {
				r.called = map[uint32]bool{}
			}
			r.called[t.GetOutputIndex()] = true
		}
	}
	b := append(r.choice(t.GetOutputIndex()), `"delta":`...)
	b = append(appendDelta(b, runs), `,"logprobs":`...)
	if len(t.GetDetails()) > 0 {
		list, err := r.pieces.chat(r.started.GetModelDigest(), t.GetText(), t.GetTokenIds(), t.GetDetails())
		if err != nil {
			return err
		}
		raw, err := json.Marshal(list)
		if err != nil {
			return err
		}
		b = append(b, raw...)
	} else {
		b = append(b, "null"...)
	}
	r.out.Text(t, r.chunk(append(b, `,"finish_reason":null}`...)))
	return nil
}

// chunk completes a chunk with its tail. It is valid until the next one.
func (r *chatReply) chunk(b []byte) []byte {
	b = append(b, r.tail...)
	r.buffer = b
	return b
}

// end writes what follows the last output.
func (r *chatReply) end() error {
	if r.request.includeUsage() {
		raw, err := json.Marshal(usageOf(&r.usage))
		if err != nil {
			return err
		}
		b := append(append(r.buffer[:0], r.head...), `"choices":[],"usage":`...)
		r.out.Tail(append(append(b, raw...), "}\n\n"...))
	}
	return r.out.End([]byte(done))
}

// chatAnswer is a whole answer.
type chatAnswer struct {
	ID                string            `json:"id"`
	Object            string            `json:"object"`
	Created           int64             `json:"created"`
	Model             string            `json:"model"`
	SystemFingerprint string            `json:"system_fingerprint"`
	Choices           []chatChoice      `json:"choices"`
	Usage             *usage            `json:"usage"`
	ServiceTier       *string           `json:"service_tier,omitempty"`
	Millrace          *translate.Origin `json:"millrace"`
}

type chatChoice struct {
	Index        int           `json:"index"`
	Message      replyMessage  `json:"message"`
	Logprobs     *chatLogprobs `json:"logprobs"`
	FinishReason string        `json:"finish_reason"`
}

type replyMessage struct {
	Role      string      `json:"role"`
	Content   *string     `json:"content"` // null beside calls without text
	Refusal   *string     `json:"refusal"`
	Reasoning string      `json:"reasoning_content,omitempty"`
	ToolCalls []replyCall `json:"tool_calls,omitempty"`
}

// whole writes a whole answer.
func (r *chatReply) whole(x *httpapi.Exchange, a *target.Answer) error {
	out := &chatAnswer{
		ID: r.id, Object: "chat.completion", Created: r.created, Model: r.request.Model, SystemFingerprint: translate.Fingerprint(a.Started),
		Usage: usageOf(a.Usage()), ServiceTier: r.request.ServiceTier, Millrace: translate.OriginOf(a.Started, r.request.Seed),
	}
	for i, o := range a.Outputs {
		message := replyMessage{Role: "assistant", Content: &o.Text, Reasoning: o.Reasoning, ToolCalls: replyCalls(o.Calls)}
		if o.Text == "" && len(o.Calls) > 0 {
			message.Content = nil
		}
		choice := chatChoice{Index: i, Message: message, FinishReason: chatFinishReason(o.Finished, len(o.Calls) > 0)}
		if len(o.Details) > 0 {
			list, err := r.pieces.chat(a.Started.GetModelDigest(), o.All, o.TokenIDs, o.Details)
			if err != nil {
				return err
			}
			choice.Logprobs = list
		}
		out.Choices = append(out.Choices, choice)
	}
	return x.WriteJSON(out)
}
