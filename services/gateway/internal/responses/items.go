package responses

import (
	"strconv"
	"strings"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/target"
)

// outputItem is an item of the output as far as it has come.
type outputItem struct {
	kind pb.PartKind
	id   string
	text strings.Builder // or the arguments
	call *pb.CallStart
	open bool
}

// Items of an answer.
type (
	outputMessage struct {
		ID      string       `json:"id"`
		Type    string       `json:"type"`
		Status  string       `json:"status"`
		Role    string       `json:"role"`
		Content []outputText `json:"content"`
	}
	outputText struct {
		Type        string     `json:"type"`
		Text        string     `json:"text"`
		Annotations []struct{} `json:"annotations"`
		Logprobs    []struct{} `json:"logprobs"`
	}
	outputReasoning struct {
		ID      string          `json:"id"`
		Type    string          `json:"type"`
		Status  string          `json:"status"`
		Summary []struct{}      `json:"summary"`
		Content []reasoningText `json:"content"`
	}
	reasoningText struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	outputCall struct {
		ID        string `json:"id"`
		Type      string `json:"type"`
		Status    string `json:"status"`
		CallID    string `json:"call_id"`
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	}
)

// part returns the one part of an item of text.
func (o *outputItem) part() any {
	if o.kind == pb.PartKind_PART_KIND_REASONING {
		return reasoningText{"reasoning_text", o.text.String()}
	}
	return outputText{Type: "output_text", Text: o.text.String(), Annotations: []struct{}{}, Logprobs: []struct{}{}}
}

// item returns the item with a status. Without its part it is as it begins.
func (o *outputItem) item(status string, begins bool) any {
	switch o.kind {
	case pb.PartKind_PART_KIND_TOOL_CALL:
		return outputCall{o.id, "function_call", status, o.call.GetId(), o.call.GetName(), o.text.String()}
	case pb.PartKind_PART_KIND_REASONING:
		out := outputReasoning{o.id, "reasoning", status, []struct{}{}, []reasoningText{}}
		if !begins {
			out.Content = append(out.Content, o.part().(reasoningText))
		}
		return out
	default:
		out := outputMessage{ID: o.id, Type: "message", Status: status, Role: "assistant", Content: []outputText{}}
		if !begins {
			out.Content = append(out.Content, o.part().(outputText))
		}
		return out
	}
}

// prefixes of the ids of items.
var prefixes = map[pb.PartKind]string{pb.PartKind_PART_KIND_REASONING: "rs_", pb.PartKind_PART_KIND_TOOL_CALL: "fc_"}

// newItem adds the item that begins with a run.
func (r *reply) newItem(run target.Run) *outputItem {
	prefix := prefixes[run.Kind]
	if prefix == "" {
		prefix = "msg_"
	}
	o := &outputItem{kind: run.Kind, id: prefix + r.name, call: run.Call, open: true}
	for _, other := range r.items {
		if other.id == o.id {
			o.id += "_" + strconv.Itoa(len(r.items))
		}
	}
	r.items = append(r.items, o)
	return o
}

// last returns the last item, nil if there is none.
func (r *reply) last() *outputItem {
	if len(r.items) == 0 {
		return nil
	}
	return r.items[len(r.items)-1]
}

// output returns all items. The last one has the status of the answer, because its length may have cut it off.
func (r *reply) output(status string) []any {
	out := make([]any, len(r.items))
	for i, o := range r.items {
		s := completed
		if i == len(r.items)-1 {
			s = status
		}
		out[i] = o.item(s, false)
	}
	return out
}

// fill sets the items of a whole output.
func (r *reply) fill(o *target.Output) {
	if o.Reasoning != "" {
		r.newItem(target.Run{Kind: pb.PartKind_PART_KIND_REASONING}).text.WriteString(o.Reasoning)
	}
	if o.Text != "" || len(o.Calls) == 0 {
		r.newItem(target.Run{Kind: pb.PartKind_PART_KIND_CONTENT}).text.WriteString(o.Text)
	}
	for _, c := range o.Calls {
		call := r.newItem(target.Run{Kind: pb.PartKind_PART_KIND_TOOL_CALL, Call: &pb.CallStart{Id: c.ID, Name: c.Name}})
		call.text.WriteString(c.Arguments)
	}
}
