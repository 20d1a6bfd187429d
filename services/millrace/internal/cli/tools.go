package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/millrace/internal/protoflags"
	"github.com/millrace/millrace/services/millrace/internal/render"
)

// toolsFile is --tools: a JSON list of functions, each as OpenAI's API has it or without the object around it.
type toolsFile struct{ chat *pb.Chat }

func (toolsFile) String() string { return "" }
func (toolsFile) Type() string   { return "file" }

type describedTool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters"`
	InputSchema json.RawMessage `json:"input_schema"`
	Strict      *bool           `json:"strict"`
	Function    *describedTool  `json:"function"`
}

func (f toolsFile) Set(name string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("%w: the tools %s: %w", protoflags.ErrValue, render.Line(name), err)
	}
	var list []describedTool
	if err := json.Unmarshal(text, &list); err != nil {
		return fmt.Errorf("%w: %s is no JSON list of functions: %w", protoflags.ErrValue, render.Line(name), err)
	}
	f.chat.Tools = nil
	for i, t := range list {
		if t.Function != nil {
			t = *t.Function
		}
		if t.Name == "" {
			return fmt.Errorf("%w: function %d of %s has no name", protoflags.ErrValue, i, render.Line(name))
		}
		tool := &pb.Tool{Name: t.Name, Description: t.Description, Strict: t.Strict}
		if t.Parameters == nil {
			t.Parameters = t.InputSchema
		}
		if t.Parameters != nil {
			schema := string(t.Parameters)
			tool.Parameters = &schema
		}
		f.chat.Tools = append(f.chat.Tools, tool)
	}
	return nil
}

// partText writes the parts of a continuation as text: calls as NAME(ARGUMENTS), each kind on lines of its own.
type partText struct {
	kind  pb.PartKind
	ended bool // the text so far ends a line
	said  strings.Builder
	calls []*pb.ToolCall
}

// of returns the text of an event.
func (p *partText) of(t *pb.Tokens) string {
	text := t.GetText()
	if len(t.GetParts()) == 0 {
		p.said.WriteString(text)
		return text
	}
	var out strings.Builder
	for _, part := range t.GetParts() {
		n := min(int(part.GetTextBytes()), len(text))
		piece := text[:n]
		text = text[n:]
		if part.GetKind() != p.kind || part.GetCall() != nil {
			out.WriteString(p.end())
			if p.kind != 0 && !p.ended {
				out.WriteString("\n")
			}
			p.kind = part.GetKind()
		}
		if c := part.GetCall(); c != nil {
			p.calls = append(p.calls, &pb.ToolCall{Id: c.GetId(), Name: c.GetName()})
			out.WriteString(c.GetName() + "(")
		}
		switch n := len(p.calls); {
		case p.kind == pb.PartKind_PART_KIND_CONTENT:
			p.said.WriteString(piece)
		case p.kind == pb.PartKind_PART_KIND_TOOL_CALL && n > 0:
			p.calls[n-1].Arguments += piece
		}
		out.WriteString(piece)
		p.ended = strings.HasSuffix(piece, "\n")
	}
	return out.String()
}

// end returns what ends the part that is open.
func (p *partText) end() string {
	if p.kind != pb.PartKind_PART_KIND_TOOL_CALL {
		return ""
	}
	p.kind, p.ended = pb.PartKind_PART_KIND_UNSPECIFIED, true
	return ")\n"
}
