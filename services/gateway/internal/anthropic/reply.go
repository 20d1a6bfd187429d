package anthropic

import (
	"encoding/json"
	"strconv"
	"time"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/resume"
	"github.com/millrace/millrace/services/gateway/internal/target"
	"github.com/millrace/millrace/services/gateway/internal/translate"
)

// messages answers POST /v1/messages.
func (d *Dialect) messages(x *httpapi.Exchange) error {
	var r messagesRequest
	if err := x.Decode(&r, nil); err != nil {
		return err
	}
	in, paths, err := r.request(x)
	if err != nil {
		return err
	}
	out, err := resume.Open(x, time.Now(), r.Stream, 1)
	if err != nil {
		return err
	}
	r.Seed = out.Prepare(in, r.Seed)
	g, err := translate.Start(x, d.client, in, "metadata.user_id")
	if err != nil {
		return paths.Failure(err)
	}
	reply := &reply{id: "msg_" + out.Name(), request: &r, out: out}
	if r.Stream {
		return paths.Failure(out.Each(g, reply.event))
	}
	a, err := target.Collect(g, 1)
	if err != nil {
		return paths.Failure(err)
	}
	m := reply.message(a.Started)
	m.Content = r.blocks(&a.Outputs[0])
	m.StopReason, m.StopSequence = stopReason(a.Outputs[0].Finished, len(a.Outputs[0].Calls) > 0)
	m.Usage.OutputTokens = a.Usage().GetCompletionTokens()
	return x.WriteJSON(m)
}

// countTokens answers POST /v1/messages/count_tokens.
func (d *Dialect) countTokens(x *httpapi.Exchange) error {
	var r conversation
	if err := x.Decode(&r, nil); err != nil {
		return err
	}
	chat, messages, err := r.chat(x)
	if err != nil {
		return err
	}
	out, err := d.client.Tokenize(x.Context(), &pb.TokenizeRequest{Model: r.Model, Input: &pb.TokenizeRequest_Chat{Chat: chat}})
	if err != nil {
		return translate.Paths{Messages: messages, Fields: []map[string]string{fields}}.Failure(err)
	}
	return x.WriteJSON(tokenCount{len(out.GetTokenIds())})
}

type tokenCount struct {
	InputTokens int `json:"input_tokens"`
}

// messageAnswer is a whole answer, and without content the first event of a stream. Fields that are always
// null are those of features that the servers do not have; Anthropic's schema requires them.
type messageAnswer struct {
	ID           string            `json:"id"`
	Type         string            `json:"type"`
	Role         string            `json:"role"`
	Model        string            `json:"model"`
	Content      []any             `json:"content"`
	StopReason   *string           `json:"stop_reason"`
	StopSequence *string           `json:"stop_sequence"`
	StopDetails  *struct{}         `json:"stop_details"`
	Container    *struct{}         `json:"container"`
	Diagnostics  *struct{}         `json:"diagnostics"`
	Usage        usage             `json:"usage"`
	Millrace     *translate.Origin `json:"millrace"`
}

type textBlock struct {
	Type      string    `json:"type"`
	Text      string    `json:"text"`
	Citations *struct{} `json:"citations"`
}

type thinkingBlock struct {
	Type      string `json:"type"`
	Thinking  string `json:"thinking"`
	Signature string `json:"signature"` // empty: nothing is signed
}

type toolUseBlock struct {
	Type  string          `json:"type"`
	ID    string          `json:"id"`
	Name  string          `json:"name"`
	Input json.RawMessage `json:"input"`
	// Caller is the model, always: it calls no tool from a program.
	Caller caller `json:"caller"`
}

type caller struct {
	Type string `json:"type"`
}

// blocks returns the content of an answer. Thinking is there if the client asked for it. The input of a call that the
// answer's length cuts off is empty.
func (r *messagesRequest) blocks(o *target.Output) []any {
	var out []any
	if o.Reasoning != "" && r.thinks() {
		out = append(out, thinkingBlock{Type: "thinking", Thinking: o.Reasoning})
	}
	if o.Text != "" || len(o.Calls) == 0 {
		out = append(out, textBlock{Type: "text", Text: o.Text})
	}
	for _, c := range o.Calls {
		input := json.RawMessage(c.Arguments)
		if !json.Valid(input) {
			input = json.RawMessage("{}")
		}
		out = append(out, toolUseBlock{"tool_use", c.ID, c.Name, input, caller{"direct"}})
	}
	return out
}

// usage counts the tokens of an answer. Those of the prompt that were cached do not count as input
// tokens.
type usage struct {
	counts
	CacheCreation *struct{} `json:"cache_creation"`
	InferenceGeo  *struct{} `json:"inference_geo"`
	ServiceTier   string    `json:"service_tier"`
	Speed         *struct{} `json:"speed"`
}

// counts is the usage of the event message_delta, and a part of that of a message.
type counts struct {
	InputTokens              uint32    `json:"input_tokens"`
	CacheCreationInputTokens uint32    `json:"cache_creation_input_tokens"`
	CacheReadInputTokens     uint32    `json:"cache_read_input_tokens"`
	OutputTokens             uint32    `json:"output_tokens"`
	OutputTokensDetails      *struct{} `json:"output_tokens_details"`
	ServerToolUse            *struct{} `json:"server_tool_use"`
}

func countsOf(s *pb.Started) counts {
	// More cached tokens than tokens would be an error of the server.
	cached := min(s.GetCachedTokens(), s.GetPromptTokens())
	return counts{InputTokens: s.GetPromptTokens() - cached, CacheReadInputTokens: cached}
}

// stopReason returns why an answer ended, and the stop sequence that ended it, if one did.
func stopReason(f *pb.Finished, called bool) (why, sequence *string) {
	name := "max_tokens"
	if f.GetReason() == pb.FinishReason_FINISH_REASON_STOP {
		if name = "end_turn"; called {
			name = "tool_use"
		}
		if text := f.GetStop(); text != "" {
			name, sequence = "stop_sequence", &text
		}
	}
	return &name, sequence
}

// reply writes an answer.
type reply struct {
	id      string
	request *messagesRequest
	out     *resume.Answer
	started *pb.Started
	buffer  []byte
	open    pb.PartKind // of the block that is open; 0: none
	index   int         // of that block, or of the next one
	called  bool
}

// message returns an answer without content.
func (r *reply) message(s *pb.Started) *messageAnswer {
	return &messageAnswer{
		ID: r.id, Type: "message", Role: "assistant", Model: r.request.Model, Content: []any{},
		Usage: usage{counts: countsOf(s), ServiceTier: "standard"}, Millrace: translate.OriginOf(s, r.request.Seed),
	}
}

// Events of a stream.
type (
	messageStart struct {
		Type    string         `json:"type"`
		Message *messageAnswer `json:"message"`
	}
	messageDelta struct {
		Type  string `json:"type"`
		Delta delta  `json:"delta"`
		Usage counts `json:"usage"`
		// Millrace is there if the stream continued in another class.
		Millrace *translate.Origin `json:"millrace,omitempty"`
	}
	delta struct {
		StopReason   *string   `json:"stop_reason"`
		StopSequence *string   `json:"stop_sequence"`
		StopDetails  *struct{} `json:"stop_details"`
		Container    *struct{} `json:"container"`
	}
)

// Events that are always the same.
const (
	ping = `{"type":"ping"}`
	stop = `{"type":"message_stop"}`
)

// event writes the events of an event of the contract.
func (r *reply) event(e *pb.GenerateResponse) error {
	switch e := e.GetEvent().(type) {
	case *pb.GenerateResponse_Started:
		again := r.started != nil
		if r.started = e.Started; again {
			return nil
		}
		raw, err := json.Marshal(messageStart{"message_start", r.message(e.Started)})
		if err != nil {
			return err
		}
		r.step("message_start", raw)
		r.step("ping", []byte(ping))
	case *pb.GenerateResponse_Tokens:
		r.tokens(e.Tokens)
	case *pb.GenerateResponse_Finished:
		return r.finish(e.Finished)
	}
	return nil
}

// finish writes the events after the text.
func (r *reply) finish(f *pb.Finished) error {
	end := messageDelta{Type: "message_delta", Usage: countsOf(r.started)}
	end.Delta.StopReason, end.Delta.StopSequence = stopReason(f, r.called)
	end.Usage.OutputTokens = f.GetUsage().GetCompletionTokens()
	if r.started.Exact != nil {
		end.Millrace = translate.OriginOf(r.started, r.request.Seed)
	}
	raw, err := json.Marshal(end)
	if err != nil {
		return err
	}
	if r.open == 0 && r.index == 0 { // an answer has a block
		r.begin(target.Run{Kind: pb.PartKind_PART_KIND_CONTENT})
	}
	r.end()
	r.step("message_delta", raw)
	r.step("message_stop", []byte(stop))
	return nil
}

// step writes an event without text of the model.
func (r *reply) step(name string, data []byte) {
	r.buffer = httpapi.AppendEvent(r.buffer[:0], name, data)
	r.out.Step(0, r.buffer)
}

// tokens writes the events of tokens: each block begins with its first run.
func (r *reply) tokens(t *pb.Tokens) {
	for _, run := range target.Runs(t) {
		if run.Kind == pb.PartKind_PART_KIND_REASONING && !r.request.thinks() {
			continue
		}
		if run.Kind != r.open || run.Call != nil {
			r.end()
			r.begin(run)
		}
		if run.Text == "" {
			continue
		}
		b := r.head("content_block_delta")
		switch run.Kind {
		case pb.PartKind_PART_KIND_REASONING:
			b = append(b, `,"delta":{"type":"thinking_delta","thinking":`...)
		case pb.PartKind_PART_KIND_TOOL_CALL:
			b = append(b, `,"delta":{"type":"input_json_delta","partial_json":`...)
		default:
			b = append(b, `,"delta":{"type":"text_delta","text":`...)
		}
		r.buffer = append(httpapi.AppendString(b, run.Text), "}}\n\n"...)
		r.out.Text(t, r.buffer)
	}
}

// head returns the beginning of an event of a block.
func (r *reply) head(name string) []byte {
	b := append(append(append(append(r.buffer[:0], "event: "...), name...), "\ndata: {\"type\":\""...), name...)
	return strconv.AppendInt(append(b, `","index":`...), int64(r.index), 10)
}

// begin writes the event that begins the block of a run.
func (r *reply) begin(run target.Run) {
	r.open = run.Kind
	b := append(r.head("content_block_start"), `,"content_block":`...)
	switch run.Kind {
	case pb.PartKind_PART_KIND_REASONING:
		b = append(b, `{"type":"thinking","thinking":"","signature":""}`...)
	case pb.PartKind_PART_KIND_TOOL_CALL:
		r.called = true
		b = httpapi.AppendString(append(b, `{"type":"tool_use","id":`...), run.Call.GetId())
		b = httpapi.AppendString(append(b, `,"name":`...), run.Call.GetName())
		b = append(b, `,"input":{},"caller":{"type":"direct"}}`...)
	default:
		b = append(b, `{"type":"text","text":"","citations":null}`...)
	}
	b = append(b, "}\n\n"...)
	r.buffer = b
	r.out.Step(0, r.buffer)
}

// end writes the event that ends the block that is open, if one is.
func (r *reply) end() {
	if r.open == 0 {
		return
	}
	r.buffer = append(r.head("content_block_stop"), "}\n\n"...)
	r.out.Step(0, r.buffer)
	r.open = 0
	r.index++
}
