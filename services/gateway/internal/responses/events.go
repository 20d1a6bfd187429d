package responses

import (
	"encoding/json"
	"errors"
	"strconv"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/target"
)

// Events other than deltas. An item of text has one part.
type (
	responseEvent struct {
		Type     string  `json:"type"`
		Sequence int64   `json:"sequence_number"`
		Response *answer `json:"response"`
	}
	itemEvent struct {
		Type        string `json:"type"`
		Sequence    int64  `json:"sequence_number"`
		OutputIndex int    `json:"output_index"`
		Item        any    `json:"item"`
	}
	partEvent struct {
		Type         string `json:"type"`
		Sequence     int64  `json:"sequence_number"`
		ItemID       string `json:"item_id"`
		OutputIndex  int    `json:"output_index"`
		ContentIndex int    `json:"content_index"`
		Part         any    `json:"part"`
	}
	textEvent struct {
		Type         string     `json:"type"`
		Sequence     int64      `json:"sequence_number"`
		ItemID       string     `json:"item_id"`
		OutputIndex  int        `json:"output_index"`
		ContentIndex int        `json:"content_index"`
		Text         string     `json:"text"`
		Logprobs     []struct{} `json:"logprobs"`
	}
	reasoningEvent struct {
		Type         string `json:"type"`
		Sequence     int64  `json:"sequence_number"`
		ItemID       string `json:"item_id"`
		OutputIndex  int    `json:"output_index"`
		ContentIndex int    `json:"content_index"`
		Text         string `json:"text"`
	}
	argumentsEvent struct {
		Type        string `json:"type"`
		Sequence    int64  `json:"sequence_number"`
		ItemID      string `json:"item_id"`
		OutputIndex int    `json:"output_index"`
		Name        string `json:"name"`
		Arguments   string `json:"arguments"`
	}
)

// stream writes the events of a generation.
func (r *reply) stream(x *httpapi.Exchange, g *target.Generation) error {
	x.EndWith(r.failedEvent)
	return r.out.Each(g, r.event)
}

// event writes the events of an event of the contract.
func (r *reply) event(e *pb.GenerateResponse) error {
	switch e := e.GetEvent().(type) {
	case *pb.GenerateResponse_Started:
		again, tokens := r.started != nil, r.answer.Usage.OutputTokens
		if r.begin(e.Started); again {
			r.count(tokens)
			return nil // the last event reports the change of class
		}
		return r.send(step{"response.created", r.response}, step{"response.in_progress", r.response})
	case *pb.GenerateResponse_Tokens:
		r.count(r.answer.Usage.OutputTokens + uint32(len(e.Tokens.GetTokenIds())))
		for _, run := range target.Runs(e.Tokens) {
			if err := r.run(e.Tokens, run); err != nil {
				return err
			}
		}
	case *pb.GenerateResponse_Finished:
		if len(r.items) == 0 { // an answer has an item
			if err := r.opening(target.Run{Kind: pb.PartKind_PART_KIND_CONTENT}); err != nil {
				return err
			}
		}
		r.finish(e.Finished)
		if err := r.closing(r.answer.Status); err != nil {
			return err
		}
		return r.send(step{"response." + r.answer.Status, r.response})
	}
	return nil
}

// deltas are the names of the events of text, by kind.
var deltas = map[pb.PartKind]string{
	pb.PartKind_PART_KIND_REASONING: "response.reasoning_text.delta", pb.PartKind_PART_KIND_TOOL_CALL: "response.function_call_arguments.delta",
	pb.PartKind_PART_KIND_CONTENT: "response.output_text.delta",
}

// run writes the events of a run: an item begins with its first run.
func (r *reply) run(t *pb.Tokens, run target.Run) error {
	if o := r.last(); o == nil || o.kind != run.Kind || run.Call != nil {
		if err := errors.Join(r.closing(completed), r.opening(run)); err != nil {
			return err
		}
	}
	if run.Text == "" {
		return nil
	}
	o, name := r.last(), deltas[run.Kind]
	o.text.WriteString(run.Text)
	b := append(append(append(r.buffer[:0], "event: "...), name...), "\ndata: {\"type\":\""...)
	b = append(append(b, name...), `","sequence_number":`...)
	b = httpapi.AppendString(append(strconv.AppendInt(b, r.out.Events(), 10), `,"item_id":`...), o.id)
	b = strconv.AppendInt(append(b, `,"output_index":`...), int64(len(r.items)-1), 10)
	if run.Kind != pb.PartKind_PART_KIND_TOOL_CALL {
		b = append(b, `,"content_index":0`...)
	}
	b = httpapi.AppendString(append(b, `,"delta":`...), run.Text)
	if run.Kind == pb.PartKind_PART_KIND_CONTENT {
		b = append(b, `,"logprobs":[]`...)
	}
	b = append(b, "}\n\n"...)
	r.buffer = b
	r.out.Text(t, r.buffer)
	return nil
}

// step is an event without text of the model. build makes it of its type and number.
type step struct {
	name  string
	build func(name string, sequence int64) any
}

// send writes steps.
func (r *reply) send(steps ...step) error {
	for _, s := range steps {
		raw, err := json.Marshal(s.build(s.name, r.out.Events()))
		if err != nil {
			return err
		}
		r.buffer = httpapi.AppendEvent(r.buffer[:0], s.name, raw)
		r.out.Step(0, r.buffer)
	}
	return nil
}

func (r *reply) response(name string, sequence int64) any {
	return responseEvent{name, sequence, r.answer}
}

// opening writes the events that begin an item.
func (r *reply) opening(run target.Run) error {
	o := r.newItem(run)
	index := len(r.items) - 1
	if err := r.send(step{"response.output_item.added", func(name string, n int64) any { return itemEvent{name, n, index, o.item(inProgress, true)} }}); err != nil {
		return err
	}
	if o.kind == pb.PartKind_PART_KIND_TOOL_CALL {
		return nil
	}
	return r.send(step{"response.content_part.added", func(name string, n int64) any { return partEvent{name, n, o.id, index, 0, o.part()} }})
}

// closing writes the events that end the last item, if it is open.
func (r *reply) closing(status string) error {
	o, index := r.last(), len(r.items)-1
	if o == nil || !o.open {
		return nil
	}
	o.open = false
	var steps []step
	part := step{"response.content_part.done", func(name string, n int64) any { return partEvent{name, n, o.id, index, 0, o.part()} }}
	switch o.kind {
	case pb.PartKind_PART_KIND_TOOL_CALL:
		steps = []step{{"response.function_call_arguments.done", func(name string, n int64) any {
			return argumentsEvent{name, n, o.id, index, o.call.GetName(), o.text.String()}
		}}}
	case pb.PartKind_PART_KIND_REASONING:
		steps = []step{{"response.reasoning_text.done", func(name string, n int64) any {
			return reasoningEvent{name, n, o.id, index, 0, o.text.String()}
		}}, part}
	default:
		steps = []step{{"response.output_text.done", func(name string, n int64) any {
			return textEvent{name, n, o.id, index, 0, o.text.String(), []struct{}{}}
		}}, part}
	}
	return r.send(append(steps, step{"response.output_item.done", func(name string, n int64) any { return itemEvent{name, n, index, o.item(status, false)} }})...)
}

// failedEvent returns the event that ends a stream that fails. It has no id, so that the client can
// continue after the event before it.
func (r *reply) failedEvent(f *httpapi.Failure) []byte {
	r.fail(f)
	const name = "response.failed"
	raw, err := json.Marshal(r.response(name, r.out.Events()))
	if err != nil { // answers always marshal
		return nil
	}
	return httpapi.AppendEvent(nil, name, raw)
}
