package template

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/millrace/millrace/gpuworker/template/jinja"
)

// pairs makes a dictionary whose keys are the template's own words.
func pairs(of ...any) *jinja.Dict {
	for i := 0; i < len(of); i += 2 {
		of[i] = jinja.Own(of[i].(string))
	}
	return jinja.NewDict(of...)
}

// messages returns the messages as transformers gives them to a template.
func (p *page) messages(in []Message) []jinja.Value {
	out := make([]jinja.Value, 0, len(in))
	for i := 0; i < len(in); i++ {
		m := &in[i]
		fields := []any{"role", role(m.Role), "content", m.Content}
		if m.Reasoning != "" {
			fields = append(fields, "reasoning_content", m.Reasoning, "reasoning", m.Reasoning)
			if m.Content == "" || len(m.ToolCalls) == 0 { // gpt-oss refuses both beside calls
				fields = append(fields, "thinking", m.Reasoning)
			}
		}
		if m.ToolCallID != "" {
			fields = append(fields, "tool_call_id", m.ToolCallID)
		}
		if m.Name != "" {
			fields = append(fields, "name", m.Name)
		}
		if len(m.ToolCalls) > 0 {
			fields = append(fields, "tool_calls", calls(m.ToolCalls))
			if p.responses {
				var answers []jinja.Value
				for ; i+1 < len(in) && in[i+1].Role == "tool"; i++ {
					answers = append(answers, pairs("name", in[i+1].Name, "response", response(in[i+1].Content)))
				}
				if answers != nil {
					fields = append(fields, "tool_responses", jinja.NewList(answers...))
				}
			}
		}
		out = append(out, pairs(fields...))
	}
	return out
}

// calls are the calls of a message. Arguments are objects, because most templates refuse text or escape it twice.
func calls(in []ToolCall) jinja.Value {
	out := make([]jinja.Value, len(in))
	for i, c := range in {
		arguments, err := decode(c.Arguments)
		if c.Arguments == "" || err != nil {
			arguments = jinja.NewDict()
		}
		out[i] = pairs("id", c.ID, "type", jinja.Own("function"), "function", pairs("name", c.Name, "arguments", arguments))
	}
	return jinja.NewList(out...)
}

// response is the answer of a tool: an object if its text is one, else the text.
func response(text string) jinja.Value {
	if strings.HasPrefix(strings.TrimSpace(text), "{") {
		if v, err := decode(text); err == nil {
			return v
		}
	}
	return text
}

// tools are the tools as transformers gives them to a template; none for an empty list.
func tools(in []Tool) jinja.Value {
	if len(in) == 0 {
		return nil
	}
	out := make([]jinja.Value, len(in))
	for i, t := range in {
		parameters, err := decode(t.Parameters)
		if t.Parameters == "" || err != nil {
			parameters = pairs("type", jinja.Own("object"), "properties", jinja.NewDict())
		}
		out[i] = pairs("type", jinja.Own("function"), "function", pairs("name", t.Name, "description", t.Description, "parameters", parameters))
	}
	return jinja.NewList(out...)
}

// maxDepth bounds how deep a decoded value nests.
const maxDepth = 64

var errDepth = errors.New("it nests too deep")

// CheckArguments returns what is wrong with the arguments of a call, "" if a template gets them as they are.
func CheckArguments(text string) string {
	var object map[string]json.RawMessage
	if json.Unmarshal([]byte(text), &object) != nil || object == nil {
		return "is no JSON object"
	}
	if _, err := decode(text); err != nil {
		return fmt.Sprintf("nests deeper than %d levels", maxDepth)
	}
	return ""
}

// decode returns a JSON text as a value, whose objects have their members in the order of the text. All text in it is
// the caller's.
func decode(text string) (jinja.Value, error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	return decodeNext(d, maxDepth)
}

func decodeNext(d *json.Decoder, depth int) (jinja.Value, error) {
	if depth == 0 {
		return nil, errDepth
	}
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := token.(type) {
	case json.Number:
		return number(t), nil
	case json.Delim:
		var items []jinja.Value
		for d.More() {
			if t == '{' {
				key, err := d.Token()
				if err != nil {
					return nil, err
				}
				items = append(items, key)
			}
			item, err := decodeNext(d, depth-1)
			if err != nil {
				return nil, err
			}
			items = append(items, item)
		}
		if _, err := d.Token(); err != nil {
			return nil, err
		}
		if t == '{' {
			return jinja.NewDict(items...), nil
		}
		return jinja.NewList(items...), nil
	default: // a text, true, false or null
		return t, nil
	}
}

// number returns a whole number as int, and others as float64.
func number(n json.Number) jinja.Value {
	if whole, err := n.Int64(); err == nil {
		return int(whole)
	}
	f, err := n.Float64()
	if err != nil {
		return n.String()
	}
	return f
}
