package responses

import (
	"encoding/json"
	"strconv"
	"strings"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/strictjson"
	"github.com/millrace/millrace/services/gateway/internal/translate"
)

// tool is a tool of any kind. The fields of most are not known here; function has those of a function.
type tool struct {
	kind     string
	function *functionTool
}

type functionTool struct {
	Type        string         `json:"type"`
	Name        string         `json:"name"`
	Description *string        `json:"description"`
	Parameters  strictjson.Raw `json:"parameters"`
	Strict      *bool          `json:"strict"`

	// Without effect.
	DeferLoading *bool          `json:"defer_loading"`
	OutputSchema strictjson.Raw `json:"output_schema"`
}

// DecodeJSON implements strictjson.Value.
func (t *tool) DecodeJSON(d *strictjson.Decoder) error {
	raw, kind, err := kindOf(d)
	if err != nil {
		return err
	}
	switch t.kind = kind; kind {
	case "":
		return d.Errorf("has no type: send a tool")
	case "function":
		t.function = &functionTool{}
		if err := strictjson.Decode(raw, t.function, nil); err != nil {
			return d.Errorf("is no function: %s", err)
		}
	}
	return nil
}

// kindOf reads an object and returns it with its field type.
func kindOf(d *strictjson.Decoder) (strictjson.Raw, string, error) {
	if kind := d.Kind(); kind != strictjson.Object {
		return nil, "", d.Errorf("is %s: must be an object", kind)
	}
	var raw strictjson.Raw
	if err := d.Decode(&raw); err != nil {
		return nil, "", err
	}
	var head struct {
		Type string `json:"type"`
	}
	if strictjson.Decode(raw, &head, func(string) bool { return true }) != nil {
		return nil, "", d.Errorf("has a type that is not a string")
	}
	return raw, head.Type, nil
}

// toolChoice is a word or the choice of a tool.
type toolChoice struct {
	word   string
	choice *choice
}

type choice struct {
	Type  string         `json:"type"`
	Name  *string        `json:"name"`
	Mode  *string        `json:"mode"`
	Tools strictjson.Raw `json:"tools"`
}

// DecodeJSON implements strictjson.Value.
func (c *toolChoice) DecodeJSON(d *strictjson.Decoder) error {
	if d.Kind() == strictjson.String {
		return d.Decode(&c.word)
	}
	return d.Decode(&c.choice)
}

// functions sets the tools of a chat.
func (r *request) functions(chat *pb.Chat) error {
	for _, t := range r.Tools {
		if f := t.function; f != nil {
			chat.Tools = append(chat.Tools, translate.Function{Name: f.Name, Description: f.Description, Parameters: f.Parameters, Strict: f.Strict}.Tool())
		}
	}
	word, name := "", ""
	if c := r.ToolChoice; c != nil {
		word = c.word
		switch {
		case c.choice == nil:
		case c.choice.Type != "function":
			return httpapi.Unsupported("tool_choice", "is of type %.32q, which is not supported: name a function", c.choice.Type)
		case c.choice.Name == nil || *c.choice.Name == "":
			return httpapi.Invalid("tool_choice.name", "is missing")
		default:
			name = *c.choice.Name
		}
	}
	return translate.SetChoice(chat, "tool_choice", word, name, r.ParallelToolCalls)
}

// answerTool is a function as an answer repeats it.
type answerTool struct {
	Type        string          `json:"type"`
	Name        string          `json:"name"`
	Description *string         `json:"description"`
	Parameters  json.RawMessage `json:"parameters"`
	Strict      *bool           `json:"strict"`
}

// answerTools are the functions of a request.
func (r *request) answerTools() []answerTool {
	out := []answerTool{}
	for _, t := range r.Tools {
		if f := t.function; f != nil {
			parameters := json.RawMessage("null")
			if len(f.Parameters) > 0 {
				parameters = append(json.RawMessage(nil), f.Parameters...)
			}
			strict := f.Strict != nil && *f.Strict
			out = append(out, answerTool{"function", f.Name, f.Description, parameters, &strict})
		}
	}
	return out
}

// answerChoice is the choice of a request as an answer repeats it.
func (r *request) answerChoice() any {
	switch c := r.ToolChoice; {
	case c == nil:
		return "auto"
	case c.choice != nil:
		return struct {
			Type string  `json:"type"`
			Name *string `json:"name"`
		}{c.choice.Type, c.choice.Name}
	default:
		return c.word
	}
}

// text returns a JSON string.
func text(raw strictjson.Raw, path string) (string, error) {
	var out string
	if raw == nil || json.Unmarshal(raw, &out) != nil {
		return "", httpapi.Invalid(path, "is missing, or is no string")
	}
	return out, nil
}

// call returns the call of an item of type function_call.
func (in *item) call(path string) (*pb.ToolCall, error) {
	id, err := text(in.CallID, path+".call_id")
	if err != nil {
		return nil, err
	}
	name, err := text(in.Name, path+".name")
	if err != nil {
		return nil, err
	}
	arguments, err := text(in.Arguments, path+".arguments")
	return &pb.ToolCall{Id: id, Name: name, Arguments: arguments}, err
}

// result returns the message of an item of type function_call_output.
func (in *item) result(x *httpapi.Exchange, path string) (*pb.ChatMessage, error) {
	id, err := text(in.CallID, path+".call_id")
	if err != nil {
		return nil, err
	}
	m := &pb.ChatMessage{Role: "tool", ToolCallId: &id}
	var body struct {
		Output content `json:"output"`
	}
	if in.Output != nil {
		err = strictjson.Decode([]byte(`{"output":`+string(in.Output)+`}`), &body, nil)
	}
	if err != nil || !body.Output.set {
		return nil, httpapi.Invalid(path+".output", "is missing, or is neither a string nor a list of parts")
	}
	m.Content, err = body.Output.join(x, path+".output")
	return m, err
}

// thought returns the text of an item of type reasoning, "" if it has none that a model can read.
func (in *item) thought() string {
	var texts []string
	for _, p := range in.Content.parts {
		if p.Type == "reasoning_text" && p.Text != nil {
			texts = append(texts, *p.Text)
		}
	}
	return strings.Join(texts, "\n")
}

// turns collects the contract's messages and the JSON path of each.
type turns struct {
	messages []*pb.ChatMessage
	paths    []string
	thought  string // of the answer that follows
}

// text adds a message. Messages of the system that follow each other are one.
func (t *turns) text(role, text, path string) {
	if n := len(t.messages); n > 0 && role == "system" && t.messages[n-1].GetRole() == role {
		t.messages[n-1].Content += "\n" + text
		return
	}
	t.add(&pb.ChatMessage{Role: role, Content: text}, path)
}

func (t *turns) add(m *pb.ChatMessage, path string) {
	if m.GetRole() == "assistant" && t.thought != "" {
		thought := t.thought
		m.Reasoning = &thought
	}
	t.thought = ""
	t.messages, t.paths = append(t.messages, m), append(t.paths, path)
}

// call adds a call to the answer before it, or to one of its own.
func (t *turns) call(c *pb.ToolCall, path string) {
	if n := len(t.messages); n == 0 || t.messages[n-1].GetRole() != "assistant" || t.thought != "" {
		t.add(&pb.ChatMessage{Role: "assistant"}, path)
	}
	m := t.messages[len(t.messages)-1]
	m.ToolCalls = append(m.ToolCalls, c)
}

// item adds an item of the input.
func (t *turns) item(x *httpapi.Exchange, in *item, i int) error {
	path := "input[" + strconv.Itoa(i) + "]"
	switch in.Type {
	case "function_call":
		c, err := in.call(path)
		if err == nil {
			t.call(c, path)
		}
		return err
	case "function_call_output":
		m, err := in.result(x, path)
		if err == nil {
			t.add(m, path)
		}
		return err
	case "reasoning":
		if thought := in.thought(); thought != "" {
			t.thought += thought
			return nil
		}
	}
	role, text, err := in.message(x, path)
	if err == nil && role != "" {
		t.text(role, text, path)
	}
	return err
}
