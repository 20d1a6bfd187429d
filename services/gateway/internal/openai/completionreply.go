package openai

import (
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/resume"
	"github.com/millrace/millrace/services/gateway/internal/translate"
)

// completionReply writes the answer to a completion request, whole or as a stream. Choices are
// numbered by prompt and then by output.
type completionReply struct {
	id      string
	request *completionRequest
	pieces  *pieces
	out     *resume.Answer
	prompts []promptState
	choices []choiceState
	buffer  []byte
	usage   pb.Usage
}

// promptState collects the events of a prompt.
type promptState struct {
	started *pb.Started
	head    []byte // of every chunk of its choices
	ids     []uint32
	details []*pb.TokenDetail
}

// choiceState collects the events of a choice.
type choiceState struct {
	echoed   bool
	length   int // characters so far
	text     strings.Builder
	logprobs *legacyLogprobs // of a whole answer
	finished *pb.Finished
}

// legacyLogprobs are the logprobs of a completion.
type legacyLogprobs struct {
	Tokens        []string             `json:"tokens"`
	TokenLogprobs []*float32           `json:"token_logprobs"`
	TopLogprobs   []map[string]float32 `json:"top_logprobs"`
	TextOffset    []int                `json:"text_offset"`
}

// append adds the logprobs of a later text.
func (l *legacyLogprobs) append(more *legacyLogprobs) {
	l.Tokens = append(l.Tokens, more.Tokens...)
	l.TokenLogprobs = append(l.TokenLogprobs, more.TokenLogprobs...)
	l.TopLogprobs = append(l.TopLogprobs, more.TopLogprobs...)
	l.TextOffset = append(l.TextOffset, more.TextOffset...)
}

func newCompletionReply(r *completionRequest, out *resume.Answer, p *pieces) *completionReply {
	n := len(r.Prompt.all)
	return &completionReply{
		id: "cmpl-" + out.Name(), request: r, pieces: p, out: out, prompts: make([]promptState, n), choices: make([]choiceState, n*r.outputs()),
	}
}

// event handles an event of the i-th prompt.
func (r *completionReply) event(i int, e *pb.GenerateResponse) error {
	p := &r.prompts[i]
	switch e := e.GetEvent().(type) {
	case *pb.GenerateResponse_Started:
		return r.begin(i, p, e.Started)
	case *pb.GenerateResponse_Prompt:
		p.ids = append(p.ids, e.Prompt.GetTokenIds()...)
		p.details = append(p.details, e.Prompt.GetDetails()...)
	case *pb.GenerateResponse_Tokens:
		return r.tokens(i, e.Tokens)
	case *pb.GenerateResponse_Finished:
		return r.finish(i, e.Finished)
	}
	return nil
}

// choice returns the number of an output's choice, after its prompt if the client wants it.
func (r *completionReply) choice(i int, output uint32) (int, error) {
	n := i*r.request.outputs() + int(output)
	c := &r.choices[n]
	if c.echoed || !r.request.echo() {
		return n, nil
	}
	c.echoed = true
	p, in := &r.prompts[i], r.request.Prompt.all[i]
	text, err := r.pieces.echoText(in)
	if err != nil {
		return n, err
	}
	var list *legacyLogprobs
	if r.request.Logprobs != nil {
		texts, err := r.pieces.prompt(p.started.GetModelDigest(), in, p.ids)
		if err == nil {
			list, err = r.legacy(p, c.length, texts, p.details)
		}
		if err != nil {
			return n, err
		}
	}
	chunk, err := r.write(i, n, text, list)
	if chunk != nil {
		r.out.Step(n, chunk)
	}
	return n, err
}

// begin handles the first event of a prompt, or a change of class. Every chunk has a choice, because
// clients read the first one unchecked.
func (r *completionReply) begin(i int, p *promptState, s *pb.Started) error {
	if p.started == nil {
		r.usage.PromptTokens += s.GetPromptTokens()
		r.usage.CachedTokens += s.GetCachedTokens()
	}
	p.started = s
	if !r.out.Streams() {
		return nil
	}
	b := p.head[:0]
	b = append(b, `data: {"id":`...)
	b = httpapi.AppendString(b, r.id)
	b = append(b, `,"object":"text_completion","created":`...)
	b = strconv.AppendInt(b, r.out.Created(), 10)
	b = append(b, `,"model":`...)
	b = httpapi.AppendString(b, r.request.Model)
	b = append(append(append(b, `,"system_fingerprint":"`...), translate.Fingerprint(s)...), `",`...)
	p.head = b
	where, err := json.Marshal(translate.OriginOf(s, r.request.Seed))
	if err != nil {
		return err
	}
	for o := range r.request.outputs() {
		b := append(append(append(append(r.buffer[:0], p.head...), `"millrace":`...), where...), `,"choices":[{"index":`...)
		n := i*r.request.outputs() + o
		b = strconv.AppendInt(b, int64(n), 10)
		r.out.Step(n, r.chunk(append(b, `,"text":"","logprobs":null,"finish_reason":null}`...)))
	}
	return nil
}

// tokens handles generated tokens.
func (r *completionReply) tokens(i int, t *pb.Tokens) error {
	n, err := r.choice(i, t.GetOutputIndex())
	if err != nil || t.GetText() == "" && len(t.GetDetails()) == 0 {
		return err
	}
	var list *legacyLogprobs
	if len(t.GetDetails()) > 0 {
		rest, texts := t.GetText(), make([]string, len(t.GetDetails()))
		for k, d := range t.GetDetails() {
			length := min(int(d.GetTextBytes()), len(rest))
			texts[k], rest = rest[:length], rest[length:]
		}
		if list, err = r.legacy(&r.prompts[i], r.choices[n].length, texts, t.GetDetails()); err != nil {
			return err
		}
	}
	chunk, err := r.write(i, n, t.GetText(), list)
	if chunk != nil {
		r.out.Text(t, chunk)
	}
	return err
}

// legacy returns the logprobs of tokens with the given texts. The first begins after offset
// characters.
func (r *completionReply) legacy(p *promptState, offset int, texts []string, details []*pb.TokenDetail) (*legacyLogprobs, error) {
	var wanted []uint32
	for _, d := range details {
		for _, c := range d.GetCandidates() {
			wanted = append(wanted, c.GetTokenId())
		}
	}
	found, err := r.pieces.client.Pieces(r.pieces.ctx, r.pieces.model, p.started.GetModelDigest(), wanted)
	if err != nil {
		return nil, err
	}
	list := &legacyLogprobs{}
	for k, text := range texts {
		var d *pb.TokenDetail
		if k < len(details) {
			d = details[k]
		}
		list.Tokens = append(list.Tokens, text)
		list.TextOffset = append(list.TextOffset, offset)
		offset += utf8.RuneCountInString(text)
		if d == nil || d.Logprob == nil { // the first token of a prompt
			list.TokenLogprobs, list.TopLogprobs = append(list.TokenLogprobs, nil), append(list.TopLogprobs, nil)
			continue
		}
		top := map[string]float32{}
		for _, c := range d.GetCandidates() {
			if piece := found[c.GetTokenId()]; top[piece] == 0 || c.GetLogprob() > top[piece] {
				top[piece] = c.GetLogprob()
			}
		}
		list.TokenLogprobs, list.TopLogprobs = append(list.TokenLogprobs, d.Logprob), append(list.TopLogprobs, top)
	}
	return list, nil
}

// write adds a text to a choice, and returns its chunk if the answer is streamed.
func (r *completionReply) write(i, n int, text string, list *legacyLogprobs) ([]byte, error) {
	c := &r.choices[n]
	c.length += utf8.RuneCountInString(text)
	if !r.out.Streams() {
		c.text.WriteString(text)
		if list != nil {
			if c.logprobs == nil {
				c.logprobs = &legacyLogprobs{}
			}
			c.logprobs.append(list)
		}
		return nil, nil
	}
	b := append(append(r.buffer[:0], r.prompts[i].head...), `"choices":[{"index":`...)
	b = append(strconv.AppendInt(b, int64(n), 10), `,"text":`...)
	b = append(httpapi.AppendString(b, text), `,"logprobs":`...)
	if list == nil {
		b = append(b, "null"...)
	} else {
		raw, err := json.Marshal(list)
		if err != nil {
			return nil, err
		}
		b = append(b, raw...)
	}
	return r.chunk(append(b, `,"finish_reason":null}`...)), nil
}

// finish handles the end of an output.
func (r *completionReply) finish(i int, f *pb.Finished) error {
	n, err := r.choice(i, f.GetOutputIndex())
	if err != nil {
		return err
	}
	r.choices[n].finished = f
	r.usage.CompletionTokens += f.GetUsage().GetCompletionTokens()
	if r.out.Streams() {
		b := append(append(r.buffer[:0], r.prompts[i].head...), `"choices":[{"index":`...)
		b = append(strconv.AppendInt(b, int64(n), 10), `,"text":"","logprobs":null,"finish_reason":"`...)
		r.out.Step(n, r.chunk(append(append(b, finishReason(f)...), `"}`...)))
	}
	return nil
}

// chunk completes a chunk whose list of choices is open. It is valid until the next one.
func (r *completionReply) chunk(b []byte) []byte {
	b = append(b, ']')
	if r.request.includeUsage() {
		b = append(b, `,"usage":null`...)
	}
	b = append(b, "}\n\n"...)
	r.buffer = b
	return b
}

// completionAnswer is a whole answer. Millrace is set if there is one prompt; otherwise each choice
// has its own.
type completionAnswer struct {
	ID                string             `json:"id"`
	Object            string             `json:"object"`
	Created           int64              `json:"created"`
	Model             string             `json:"model"`
	SystemFingerprint string             `json:"system_fingerprint"`
	Choices           []completionChoice `json:"choices"`
	Usage             *usage             `json:"usage"`
	ServiceTier       *string            `json:"service_tier,omitempty"`
	Millrace          *translate.Origin  `json:"millrace,omitempty"`
}

type completionChoice struct {
	Index        int               `json:"index"`
	Text         string            `json:"text"`
	Logprobs     *legacyLogprobs   `json:"logprobs"`
	FinishReason string            `json:"finish_reason"`
	Millrace     *translate.Origin `json:"millrace,omitempty"`
}

// end writes the whole answer, or the end of the stream.
func (r *completionReply) end(x *httpapi.Exchange) error {
	if r.out.Streams() {
		if r.request.includeUsage() {
			raw, err := json.Marshal(usageOf(&r.usage))
			if err != nil {
				return err
			}
			b := append(append(r.buffer[:0], r.prompts[0].head...), `"choices":[],"usage":`...)
			r.out.Tail(append(append(b, raw...), "}\n\n"...))
		}
		return r.out.End([]byte(done))
	}
	a := &completionAnswer{
		ID: r.id, Object: "text_completion", Created: r.out.Created(), Model: r.request.Model,
		SystemFingerprint: translate.Fingerprint(r.prompts[0].started), Usage: usageOf(&r.usage), ServiceTier: r.request.ServiceTier,
	}
	if len(r.prompts) == 1 {
		a.Millrace = translate.OriginOf(r.prompts[0].started, r.request.Seed)
	}
	for n := range r.choices {
		c := &r.choices[n]
		choice := completionChoice{Index: n, Text: c.text.String(), Logprobs: c.logprobs, FinishReason: finishReason(c.finished)}
		if len(r.prompts) > 1 {
			choice.Millrace = translate.OriginOf(r.prompts[n/r.request.outputs()].started, r.request.Seed)
		}
		a.Choices = append(a.Choices, choice)
	}
	return x.WriteJSON(a)
}
