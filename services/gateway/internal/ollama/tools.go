package ollama

import (
	"encoding/json"
	"strconv"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/strictjson"
	"github.com/millrace/millrace/services/gateway/internal/target"
	"github.com/millrace/millrace/services/gateway/internal/translate"
)

type tool struct {
	Type     string    `json:"type"`
	Function *function `json:"function"`
}

type function struct {
	Name        string         `json:"name"`
	Description *string        `json:"description"`
	Parameters  strictjson.Raw `json:"parameters"`
	Strict      *bool          `json:"strict"`
}

// toolCall is a call of an earlier answer. Its arguments are an object.
type toolCall struct {
	ID       *string `json:"id"`
	Type     *string `json:"type"`
	Function *called `json:"function"`
}

type called struct {
	Index     *int           `json:"index"`
	Name      string         `json:"name"`
	Arguments strictjson.Raw `json:"arguments"`
}

// tools returns the contract's tools.
func tools(in []tool) ([]*pb.Tool, error) {
	out := make([]*pb.Tool, len(in))
	for i, t := range in {
		path := "tools[" + strconv.Itoa(i) + "]"
		switch {
		case t.Type != "" && t.Type != "function":
			return nil, httpapi.Unsupported(path, "is a tool of type %.32q, which is not supported: the models call functions only", t.Type)
		case t.Function == nil:
			return nil, httpapi.Invalid(path+".function", "is missing")
		}
		f := t.Function
		out[i] = translate.Function{Name: f.Name, Description: f.Description, Parameters: f.Parameters, Strict: f.Strict}.Tool()
	}
	return out, nil
}

// history gives calls without an id one, and finds the call that a message of a tool answers.
type history struct{ open []*pb.ToolCall }

// calls adds the calls of a message. path is that of the list.
func (h *history) calls(in []toolCall, path string) ([]*pb.ToolCall, error) {
	out := make([]*pb.ToolCall, len(in))
	for i, c := range in {
		if c.Function == nil {
			return nil, httpapi.Invalid(path+"["+strconv.Itoa(i)+"].function", "is missing")
		}
		id := path + "[" + strconv.Itoa(i) + "]"
		if c.ID != nil && *c.ID != "" {
			id = *c.ID
		}
		out[i] = &pb.ToolCall{Id: id, Name: c.Function.Name, Arguments: string(c.Function.Arguments)}
	}
	h.open = out
	return out, nil
}

// answered returns the id of the call that a message answers: the first open one, of its tool if the message names one.
func (h *history) answered(name *string) *string {
	for i, c := range h.open {
		if name == nil || *name == "" || *name == c.GetName() {
			h.open = append(h.open[:i:i], h.open[i+1:]...)
			return &c.Id
		}
	}
	return nil
}

// replyCall is a call of an answer.
type replyCall struct {
	ID       string      `json:"id"`
	Function replyCalled `json:"function"`
}

type replyCalled struct {
	Index     int             `json:"index"`
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
}

// replyCalls returns whole calls. The arguments of a call that the answer's length cuts off are empty.
func replyCalls(in []target.ToolCall, first int) (out []replyCall) {
	for i, c := range in {
		arguments := json.RawMessage(c.Arguments)
		if !json.Valid(arguments) {
			arguments = json.RawMessage("{}")
		}
		out = append(out, replyCall{c.ID, replyCalled{first + i, c.Name, arguments}})
	}
	return out
}
