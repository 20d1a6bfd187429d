package responses

import (
	"encoding/json"
	"strconv"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/target"
)

// Events other than response.output_text.delta. The answer has one output, with one part.
type (
	responseEvent struct {
		Type     string  `json:"type"`
		Sequence int64   `json:"sequence_number"`
		Response *answer `json:"response"`
	}
	itemEvent struct {
		Type        string        `json:"type"`
		Sequence    int64         `json:"sequence_number"`
		OutputIndex int           `json:"output_index"`
		Item        outputMessage `json:"item"`
	}
	partEvent struct {
		Type         string     `json:"type"`
		Sequence     int64      `json:"sequence_number"`
		ItemID       string     `json:"item_id"`
		OutputIndex  int        `json:"output_index"`
		ContentIndex int        `json:"content_index"`
		Part         outputText `json:"part"`
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
)

const deltaName = "response.output_text.delta"

// stream writes the events of a generation.
func (r *reply) stream(x *httpapi.Exchange, g *target.Generation) error {
	x.EndWith(r.failedEvent)
	r.head = append(httpapi.AppendString([]byte(`,"item_id":`), r.messageID), `,"output_index":0,"content_index":0,"delta":`...)
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
		return r.opening()
	case *pb.GenerateResponse_Tokens:
		r.count(r.answer.Usage.OutputTokens + uint32(len(e.Tokens.GetTokenIds())))
		if e.Tokens.GetText() == "" {
			return nil
		}
		r.text.WriteString(e.Tokens.GetText())
		b := r.buffer[:0]
		b = append(b, "event: "+deltaName+"\ndata: "+`{"type":"`+deltaName+`","sequence_number":`...)
		b = append(strconv.AppendInt(b, r.out.Events(), 10), r.head...)
		r.buffer = append(httpapi.AppendString(b, e.Tokens.GetText()), `,"logprobs":[]}`+"\n\n"...)
		r.out.Text(e.Tokens, r.buffer)
	case *pb.GenerateResponse_Finished:
		r.finish(e.Finished)
		return r.closing()
	}
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

// opening writes the events before the text.
func (r *reply) opening() error {
	empty := r.message(inProgress)
	empty.Content = []outputText{}
	return r.send(
		step{"response.created", r.response}, step{"response.in_progress", r.response},
		step{"response.output_item.added", func(name string, n int64) any { return itemEvent{name, n, 0, empty} }},
		step{"response.content_part.added", func(name string, n int64) any { return partEvent{name, n, r.messageID, 0, 0, r.part()} }},
	)
}

// closing writes the events after the text.
func (r *reply) closing() error {
	return r.send(
		step{"response.output_text.done", func(name string, n int64) any {
			return textEvent{name, n, r.messageID, 0, 0, r.text.String(), []struct{}{}}
		}},
		step{"response.content_part.done", func(name string, n int64) any { return partEvent{name, n, r.messageID, 0, 0, r.part()} }},
		step{"response.output_item.done", func(name string, n int64) any { return itemEvent{name, n, 0, r.answer.Output[0]} }},
		step{"response." + r.answer.Status, r.response},
	)
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
