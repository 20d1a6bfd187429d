package translate

import (
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/strictjson"
)

// Function is a tool that a request describes.
type Function struct {
	Name        string
	Description *string
	Parameters  strictjson.Raw // its JSON schema; nil: any object
	Strict      *bool
}

// Tool returns the contract's tool.
func (f Function) Tool() *pb.Tool {
	t := &pb.Tool{Name: f.Name, Strict: f.Strict}
	if f.Description != nil {
		t.Description = *f.Description
	}
	if text := string(f.Parameters); text != "" && text != "null" && text != "{}" {
		t.Parameters = &text
	}
	return t
}

// modes are the words for how a model calls tools.
var modes = map[string]pb.ToolMode{
	"none": pb.ToolMode_TOOL_MODE_NONE, "auto": pb.ToolMode_TOOL_MODE_AUTO, "required": pb.ToolMode_TOOL_MODE_REQUIRED, "any": pb.ToolMode_TOOL_MODE_REQUIRED,
}

// SetChoice sets how the model of a chat calls its tools: a word, or the name of a tool, which both may be empty. param
// is the field's path. Without tools, words that need none have no effect.
func SetChoice(chat *pb.Chat, param, word, name string, parallel *bool) error {
	choice := &pb.ToolChoice{Mode: modes[word], Parallel: parallel}
	switch {
	case name != "":
		choice.Mode, choice.Name = pb.ToolMode_TOOL_MODE_REQUIRED, &name
	case word != "" && choice.GetMode() == 0:
		return httpapi.Invalid(param, "is %.32q: must be none, auto, required or a tool", word)
	}
	if len(chat.GetTools()) == 0 {
		if choice.GetMode() == pb.ToolMode_TOOL_MODE_REQUIRED {
			return httpapi.Invalid(param, "needs tools: send some, or leave it out")
		}
		return nil
	}
	if word != "" || name != "" || parallel != nil {
		chat.ToolChoice = choice
	}
	return nil
}

// WantParts makes the server divide the answer to a chat into reasoning, content and calls.
func WantParts(in *pb.GenerateRequest) {
	if in.Response == nil {
		in.Response = &pb.ResponseOptions{}
	}
	parts := true
	in.Response.Parts = &parts
}
