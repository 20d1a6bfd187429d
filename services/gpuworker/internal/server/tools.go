package server

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/millrace/millrace/gpuworker/guide"
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/gpuworker/prompt"
	"github.com/millrace/millrace/gpuworker/template"
	"github.com/millrace/millrace/gpuworker/tools"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

// Limits of the tools of a chat.
const (
	maxTools          = 128
	maxToolBytes      = 256 << 10 // of all tools together
	maxSchemaBytes    = 64 << 10
	maxCallsOfMessage = 128
	maxCallIDBytes    = 128
)

// tools checks the tools of a chat, and the calls in its messages.
func (c *Checker) tools(chat *pb.Chat) {
	names, bytes := map[string]bool{}, 0
	if n := len(chat.GetTools()); n > maxTools {
		c.Add("chat.tools", "has %d tools, at most %d", n, maxTools)
		return
	}
	for i, t := range chat.GetTools() {
		field := fmt.Sprintf("chat.tools[%d]", i)
		bytes += len(t.GetName()) + len(t.GetDescription()) + len(t.GetParameters())
		switch {
		case !tools.ValidName(t.GetName()):
			c.Add(field+".name", "is %.128q, want 1 to 128 letters, digits, underscores, hyphens and full stops", t.GetName())
		case names[t.GetName()]:
			c.Add(field+".name", "is %q, as that of an earlier tool is", t.GetName())
		}
		names[t.GetName()] = true
		if len(t.GetParameters()) > maxSchemaBytes {
			c.Add(field+".parameters", "has %d bytes, at most %d", len(t.GetParameters()), maxSchemaBytes)
		}
	}
	if bytes > maxToolBytes {
		c.Add("chat.tools", "has %d bytes, at most %d", bytes, maxToolBytes)
	}
	c.toolChoice(chat, names)
	for i, m := range chat.GetMessages() {
		c.toolMessage(fmt.Sprintf("chat.messages[%d]", i), m)
	}
}

func (c *Checker) toolChoice(chat *pb.Chat, names map[string]bool) {
	choice := chat.GetToolChoice()
	if choice == nil {
		return
	}
	if _, known := pb.ToolMode_name[int32(choice.GetMode())]; !known {
		c.Add("chat.tool_choice.mode", "is %d, which is no mode", choice.GetMode())
	}
	if len(chat.GetTools()) == 0 {
		c.Add("chat.tool_choice", "needs chat.tools")
		return
	}
	if choice.Name == nil {
		return
	}
	switch {
	case choice.GetMode() != pb.ToolMode_TOOL_MODE_REQUIRED:
		c.Add("chat.tool_choice.name", "needs mode TOOL_MODE_REQUIRED")
	case !names[choice.GetName()]:
		c.Add("chat.tool_choice.name", "is %.128q, which is none of the tools", choice.GetName())
	}
}

func (c *Checker) toolMessage(field string, m *pb.ChatMessage) {
	if n := len(m.GetToolCalls()); n > maxCallsOfMessage {
		c.Add(field+".tool_calls", "has %d calls, at most %d", n, maxCallsOfMessage)
		return
	}
	for i, call := range m.GetToolCalls() {
		field := fmt.Sprintf("%s.tool_calls[%d]", field, i)
		if len(call.GetId()) > maxCallIDBytes {
			c.Add(field+".id", "has %d bytes, at most %d", len(call.GetId()), maxCallIDBytes)
		}
		if !tools.ValidName(call.GetName()) {
			c.Add(field+".name", "is %.128q, want 1 to 128 letters, digits, underscores, hyphens and full stops", call.GetName())
		}
		if text := call.GetArguments(); text != "" {
			if problem := template.CheckArguments(text); problem != "" {
				c.Add(field+".arguments", "%s", problem)
			}
		}
	}
	if len(m.GetToolCallId()) > maxCallIDBytes {
		c.Add(field+".tool_call_id", "has %d bytes, at most %d", len(m.GetToolCallId()), maxCallIDBytes)
	}
}

// partsWanted reports whether the answer to a request has parts.
func partsWanted(in *pb.GenerateRequest) bool {
	if r := in.GetResponse(); r != nil && r.Parts != nil {
		return r.GetParts()
	}
	return len(in.GetChat().GetTools()) > 0
}

// parts checks whether the options of the response fit to its parts.
func (c *Checker) parts(in *pb.GenerateRequest) {
	if !partsWanted(in) {
		if len(in.GetChat().GetTools()) > 0 {
			c.Add("response.parts", "is false, and chat.tools needs parts: leave it unset")
		}
		if chat := in.GetChat(); chat != nil && chat.ToolFormat != nil {
			c.Add("chat.tool_format", "needs response.parts or chat.tools")
		}
		if chat := in.GetChat(); chat != nil && chat.ReasoningBudget != nil {
			c.Add("chat.reasoning_budget", "needs response.parts or chat.tools")
		}
		return
	}
	if in.GetChat() == nil {
		c.Add("response.parts", "needs a chat, whose template shows the marks of parts")
	}
	if in.GetResponse().GetTokenIdsOnly() {
		c.Add("response.token_ids_only", "is set, and parts are of text: leave one of them out")
	}
	if len(in.GetChat().GetTools()) > 0 && in.GetStopping().GetIgnoreEos() {
		c.Add("stopping.ignore_eos", "is set with chat.tools, whose answers end with an end token: leave it unset")
	}
}

// formatOf returns how the model writes reasoning and calls in a chat.
func formatOf(chat *pb.Chat, inst *model.Instance) (tools.Format, error) {
	format := inst.Facts.Format
	if chat.TemplateName != nil {
		format = inst.Named[chat.GetTemplateName()].Format
	}
	if chat.ToolFormat != nil {
		named, ok := format.Named(chat.GetToolFormat())
		if !ok {
			return format, invalid([]rpc.Violation{{
				Field: "chat.tool_format", Description: fmt.Sprintf("is %.64q, want one of %q", chat.GetToolFormat(), tools.Names()),
			}})
		}
		format = named
	}
	if len(chat.GetTools()) > 0 && format.Name == "" {
		return format, invalid([]rpc.Violation{{
			Field: "chat.tools", Description: fmt.Sprintf("are given, and the chat template shows no format of calls: name one of %q in tool_format, "+
				"if the model knows it", tools.Names()),
		}})
	}
	return format, nil
}

// constrain sets the grammar and the parser of an answer. It renders a chat whose answer has parts, because the end of
// the prompt decides where the answer begins.
func (s *Server) constrain(ctx context.Context, in *pb.GenerateRequest, inst *model.Instance, input *prompt.Input, options *prompt.Options) error {
	source, field := (*guide.Source)(nil), "chat.tools"
	if in.GetGuided() != nil {
		text, of := sourceOf(in.GetGuided())
		source, field = &text, of
	}
	if partsWanted(in) && inst.Tokenizer != nil {
		answer, err := s.divide(ctx, in, inst, input, options, source)
		if err != nil {
			return err
		}
		source = answer
	}
	if source == nil {
		return nil
	}
	grammar, err := s.compile(ctx, in, inst, *source, field)
	options.Grammar = grammar
	return err
}

// divide sets the parser of an answer, and returns its constraint.
func (s *Server) divide(ctx context.Context, in *pb.GenerateRequest, inst *model.Instance, input *prompt.Input, options *prompt.Options,
	source *guide.Source,
) (*guide.Source, error) {
	chat := in.GetChat()
	format, err := formatOf(chat, inst)
	if err != nil {
		return nil, err
	}
	for i := range input.Chat.Messages {
		m := &input.Chat.Messages[i]
		m.ToolCallID = format.PromptID(m.ToolCallID)
		for j := range m.ToolCalls {
			m.ToolCalls[j].ID = format.PromptID(m.ToolCalls[j].ID)
		}
	}
	rendered, err := offerOf(inst).RenderFitting(ctx, in.GetFairnessId(), *input.Chat)
	if err != nil {
		return nil, err
	}
	input.Rendered = &rendered
	answer := tools.Answer{Opening: format.OpeningOf(rendered.Text), Tools: toolsOf(chat.GetTools()), Choice: choiceOf(chat.GetToolChoice()), Source: source}
	if !input.Chat.AddGenerationPrompt {
		answer.Opening = tools.Neutral
	}
	if err := budget(in, format, &answer); err != nil {
		return nil, err
	}
	constraint, err := format.Constraint(inst.IsControl, answer)
	var problem *tools.Error
	if errors.As(err, &problem) {
		return nil, invalidGrammar("chat.tools", &guide.Error{Kind: guide.ErrUnsupported, Path: problem.Path, Problem: problem.Problem})
	}
	options.Parts = func() *tools.Parser { return format.Parser(inst.IsControl, answer) }
	options.Mark = inst.Mark
	options.CallID = format.CallID
	return constraint, err
}

// budget sets the most tokens of an answer's reasoning.
func budget(in *pb.GenerateRequest, format tools.Format, answer *tools.Answer) error {
	most := in.GetChat().ReasoningBudget
	problem := ""
	switch {
	case most == nil:
		return nil
	case *most > math.MaxInt32:
		problem = fmt.Sprintf("is %d, at most %d", *most, math.MaxInt32)
	case !format.Budgets():
		problem = "is set, and the model's format has no tags around its reasoning: leave it unset"
	case in.GetStopping().GetIgnoreEos():
		problem = "is set with stopping.ignore_eos, and a bounded answer ends with an end token: leave one of them unset"
	}
	if problem != "" {
		return invalid([]rpc.Violation{{Field: "chat.reasoning_budget", Description: problem}})
	}
	tokens := int(*most)
	answer.Budget = &tokens
	return nil
}

func toolsOf(in []*pb.Tool) []tools.Tool {
	out := make([]tools.Tool, len(in))
	for i, t := range in {
		out[i] = tools.Tool{Name: t.GetName(), Description: t.GetDescription(), Parameters: t.GetParameters(), Strict: t.GetStrict()}
	}
	return out
}

func choiceOf(in *pb.ToolChoice) tools.Choice {
	mode := map[pb.ToolMode]tools.Mode{pb.ToolMode_TOOL_MODE_NONE: tools.None, pb.ToolMode_TOOL_MODE_REQUIRED: tools.Required}[in.GetMode()]
	return tools.Choice{Mode: mode, Name: in.GetName(), Parallel: in == nil || in.Parallel == nil || in.GetParallel()}
}

func templateTools(in []*pb.Tool) []template.Tool {
	var out []template.Tool
	for _, t := range in {
		out = append(out, template.Tool{Name: t.GetName(), Description: t.GetDescription(), Parameters: t.GetParameters()})
	}
	return out
}

// messagesOf returns the messages of a chat. A tool's message gets the name of the tool whose call it answers.
func messagesOf(in *pb.Chat) []template.Message {
	names := map[string]string{} // of tools, by call
	out := make([]template.Message, len(in.GetMessages()))
	for i, m := range in.GetMessages() {
		out[i] = template.Message{Role: m.GetRole(), Content: m.GetContent(), Reasoning: m.GetReasoning(), ToolCallID: m.GetToolCallId()}
		if m.GetRole() == "tool" { // others have no id either, nor have some calls
			out[i].Name = names[m.GetToolCallId()]
		}
		for _, c := range m.GetToolCalls() {
			out[i].ToolCalls = append(out[i].ToolCalls, template.ToolCall{ID: c.GetId(), Name: c.GetName(), Arguments: c.GetArguments()})
			names[c.GetId()] = c.GetName()
		}
	}
	return out
}
