package openai

import (
	"strconv"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/strictjson"
	"github.com/millrace/millrace/services/gateway/internal/target"
	"github.com/millrace/millrace/services/gateway/internal/translate"
)

type tool struct {
	Type     string         `json:"type"`
	Function *function      `json:"function"`
	Custom   strictjson.Raw `json:"custom"`
}

type function struct {
	Name        string         `json:"name"`
	Description *string        `json:"description"`
	Parameters  strictjson.Raw `json:"parameters"`
	Strict      *bool          `json:"strict"`
}

// toolCall is a call of an earlier answer.
type toolCall struct {
	ID       string         `json:"id"`
	Type     string         `json:"type"`
	Index    *int           `json:"index"` // of a chunk, which clients leave in
	Function *calledTool    `json:"function"`
	Custom   strictjson.Raw `json:"custom"`
}

type calledTool struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// toolChoice is a word or the choice of a function.
type toolChoice struct {
	word   string
	choice *choice
}

type choice struct {
	Type         string         `json:"type"`
	Function     *function      `json:"function"`
	AllowedTools strictjson.Raw `json:"allowed_tools"`
	Custom       strictjson.Raw `json:"custom"`
}

// DecodeJSON implements strictjson.Value.
func (c *toolChoice) DecodeJSON(d *strictjson.Decoder) error {
	if d.Kind() == strictjson.String {
		return d.Decode(&c.word)
	}
	return d.Decode(&c.choice)
}

// tools sets the tools of a chat.
func (r *chatRequest) tools(chat *pb.Chat) error {
	for i, t := range r.Tools {
		path := "tools[" + strconv.Itoa(i) + "]"
		switch {
		case t.Type != "function":
			return httpapi.Unsupported(path, "is a tool of type %.32q, which is not supported: the models call functions only", t.Type)
		case t.Function == nil:
			return httpapi.Invalid(path+".function", "is missing")
		}
		f := t.Function
		chat.Tools = append(chat.Tools, translate.Function{Name: f.Name, Description: f.Description, Parameters: f.Parameters, Strict: f.Strict}.Tool())
	}
	word, name := "", ""
	if c := r.ToolChoice; c != nil {
		word = c.word
		switch {
		case c.choice == nil:
		case c.choice.Type != "function":
			return httpapi.Unsupported("tool_choice", "is of type %.32q, which is not supported: name a function", c.choice.Type)
		case c.choice.Function == nil || c.choice.Function.Name == "":
			return httpapi.Invalid("tool_choice.function.name", "is missing")
		default:
			name = c.choice.Function.Name
		}
	}
	return translate.SetChoice(chat, "tool_choice", word, name, r.ParallelToolCalls)
}

// calls returns the contract's calls.
func calls(in []toolCall, path string) ([]*pb.ToolCall, error) {
	out := make([]*pb.ToolCall, len(in))
	for i, c := range in {
		at := path + "[" + strconv.Itoa(i) + "]"
		switch {
		case c.Type != "" && c.Type != "function":
			return nil, httpapi.Unsupported(at, "is a call of type %.32q, which is not supported: the models call functions only", c.Type)
		case c.Function == nil:
			return nil, httpapi.Invalid(at+".function", "is missing")
		}
		out[i] = &pb.ToolCall{Id: c.ID, Name: c.Function.Name, Arguments: c.Function.Arguments}
	}
	return out, nil
}

// replyCall is a call of an answer.
type replyCall struct {
	ID       string     `json:"id"`
	Type     string     `json:"type"`
	Function calledTool `json:"function"`
}

func replyCalls(in []target.ToolCall) []replyCall {
	var out []replyCall
	for _, c := range in {
		out = append(out, replyCall{c.ID, "function", calledTool{c.Name, c.Arguments}})
	}
	return out
}

// appendDelta appends the delta of runs: their texts by kind.
func appendDelta(b []byte, runs []target.Run) []byte {
	content, reasoning, calls := "", "", []byte(nil)
	for _, r := range runs {
		switch r.Kind {
		case pb.PartKind_PART_KIND_REASONING:
			reasoning += r.Text
		case pb.PartKind_PART_KIND_TOOL_CALL:
			if calls != nil {
				calls = append(calls, ',')
			}
			calls = strconv.AppendInt(append(calls, `{"index":`...), int64(r.Index), 10)
			if r.Call != nil {
				calls = httpapi.AppendString(append(calls, `,"id":`...), r.Call.GetId())
				calls = httpapi.AppendString(append(calls, `,"type":"function","function":{"name":`...), r.Call.GetName())
				calls = append(calls, `,"arguments":`...)
			} else {
				calls = append(calls, `,"function":{"arguments":`...)
			}
			calls = append(httpapi.AppendString(calls, r.Text), "}}"...)
		default:
			content += r.Text
		}
	}
	b = append(b, '{')
	if reasoning != "" {
		b = append(httpapi.AppendString(append(b, `"reasoning_content":`...), reasoning), ',')
	}
	if calls != nil {
		b = append(append(append(b, `"tool_calls":[`...), calls...), "],"...)
	}
	if content != "" || reasoning == "" && calls == nil {
		return append(httpapi.AppendString(append(b, `"content":`...), content), '}')
	}
	return append(b[:len(b)-1], '}')
}
