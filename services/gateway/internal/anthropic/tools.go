package anthropic

import (
	"strconv"

	"google.golang.org/protobuf/types/known/structpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/strictjson"
	"github.com/millrace/millrace/services/gateway/internal/translate"
)

type tool struct {
	Type        *string        `json:"type"`
	Name        string         `json:"name"`
	Description *string        `json:"description"`
	InputSchema strictjson.Raw `json:"input_schema"`
	Strict      *bool          `json:"strict"`

	// Skipped.
	CacheControl   strictjson.Raw `json:"cache_control"`
	InputExamples  strictjson.Raw `json:"input_examples"`
	EagerStreaming *bool          `json:"eager_input_streaming"`
	DeferLoading   *bool          `json:"defer_loading"`
	AllowedCallers strictjson.Raw `json:"allowed_callers"`
}

// tools sets the tools of a chat.
func (c *conversation) tools(x *httpapi.Exchange, chat *pb.Chat) error {
	for i, t := range c.Tools {
		path := "tools[" + strconv.Itoa(i) + "]"
		if t.Type != nil && *t.Type != "custom" {
			return httpapi.Unsupported(path, "is a tool of type %.32q, which is not supported: the models call tools of the caller only", *t.Type)
		}
		if err := translate.Skip(x,
			translate.Field{Param: path + ".cache_control", Set: t.CacheControl != nil},
			translate.Field{Param: path + ".input_examples", Set: t.InputExamples != nil},
			translate.Field{Param: path + ".eager_input_streaming", Set: t.EagerStreaming != nil},
			translate.Field{Param: path + ".defer_loading", Set: t.DeferLoading != nil},
			translate.Field{Param: path + ".allowed_callers", Set: t.AllowedCallers != nil},
		); err != nil {
			return err
		}
		chat.Tools = append(chat.Tools, translate.Function{Name: t.Name, Description: t.Description, Parameters: t.InputSchema, Strict: t.Strict}.Tool())
	}
	choice := c.ToolChoice
	if choice == nil {
		return nil
	}
	var parallel *bool
	if choice.DisableParallel != nil {
		allowed := !*choice.DisableParallel
		parallel = &allowed
	}
	switch choice.Type {
	case "auto", "any", "none":
	case "tool":
		if choice.Name == nil || *choice.Name == "" {
			return httpapi.Invalid("tool_choice.name", "is missing")
		}
		return translate.SetChoice(chat, "tool_choice", "", *choice.Name, parallel)
	default:
		return httpapi.Invalid("tool_choice.type", "is %.32q: must be auto, any, none or tool", choice.Type)
	}
	return translate.SetChoice(chat, "tool_choice", choice.Type, "", parallel)
}

// thinks reports whether the client asks for thinking.
func (c *conversation) thinks() bool { return c.Thinking != nil && c.Thinking.Type != "disabled" }

// think sets the variable by which templates begin the reasoning. A template that does not read it renders as without it.
func (c *conversation) think(x *httpapi.Exchange, chat *pb.Chat) error {
	if c.Thinking == nil {
		return nil
	}
	switch c.Thinking.Type {
	case "enabled", "adaptive", "disabled":
	default:
		return httpapi.Invalid("thinking.type", "is %.32q: must be enabled, adaptive or disabled", c.Thinking.Type)
	}
	chat.TemplateKwargs = &structpb.Struct{Fields: map[string]*structpb.Value{"enable_thinking": structpb.NewBoolValue(c.thinks())}}
	return translate.Skip(x,
		translate.Field{Param: "thinking.budget_tokens", Set: c.Thinking.BudgetTokens != nil},
		translate.Field{Param: "thinking.display", Set: c.Thinking.Display != nil},
	)
}
