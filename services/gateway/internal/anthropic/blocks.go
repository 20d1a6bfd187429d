package anthropic

import (
	"strconv"
	"strings"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/strictjson"
	"github.com/millrace/millrace/services/gateway/internal/translate"
)

// block is a part of a content.
type block struct {
	Type         string         `json:"type"`
	Text         *string        `json:"text"`
	CacheControl strictjson.Raw `json:"cache_control"`
	Citations    strictjson.Raw `json:"citations"`

	// Of tool_use.
	ID    *string        `json:"id"`
	Name  *string        `json:"name"`
	Input strictjson.Raw `json:"input"`
	// Caller is that of an answer that is sent back.
	Caller strictjson.Raw `json:"caller"`
	// Of tool_result.
	ToolUseID *string  `json:"tool_use_id"`
	Content   *content `json:"content"`
	IsError   *bool    `json:"is_error"`
	// Of thinking.
	Thinking  *string `json:"thinking"`
	Signature *string `json:"signature"`

	// Fields of other types, so that an error names the block and not its fields.
	Source  strictjson.Raw `json:"source"`
	Title   strictjson.Raw `json:"title"`
	Context strictjson.Raw `json:"context"`
	Data    strictjson.Raw `json:"data"`
	FileID  strictjson.Raw `json:"file_id"`
}

// turns collects the contract's messages and the JSON path of each.
type turns struct {
	messages []*pb.ChatMessage
	paths    []string
}

// last returns the last message if it is of a role and has no answer of a tool, else a new one.
func (t *turns) last(role, path string) *pb.ChatMessage {
	if n := len(t.messages); n > 0 && t.messages[n-1].GetRole() == role {
		return t.messages[n-1]
	}
	m := &pb.ChatMessage{Role: role}
	t.messages, t.paths = append(t.messages, m), append(t.paths, path)
	return m
}

// add adds a message. Messages of one role that follow each other are one message, as Anthropic's API has it. Answers of
// tools are messages of their own.
func (t *turns) add(x *httpapi.Exchange, m message, path string) error {
	if m.Content.blocks == nil {
		addText(t.last(m.Role, path), m.Content.text)
		return nil
	}
	if len(m.Content.blocks) == 0 {
		t.last(m.Role, path)
	}
	for i := range m.Content.blocks {
		b, at := &m.Content.blocks[i], path+".content["+strconv.Itoa(i)+"]"
		if err := b.skip(x, at); err != nil {
			return err
		}
		if err := t.block(x, m.Role, b, path, at); err != nil {
			return err
		}
	}
	return nil
}

func addText(m *pb.ChatMessage, text string) {
	if m.GetContent() != "" {
		text = m.GetContent() + "\n" + text
	}
	m.Content = text
}

// skip records fields of a block without effect.
func (b *block) skip(x *httpapi.Exchange, at string) error {
	return translate.Skip(x,
		translate.Field{Param: at + ".cache_control", Set: b.CacheControl != nil},
		translate.Field{Param: at + ".citations", Set: b.Citations != nil && string(b.Citations) != "[]"},
	)
}

// block adds a block of a message.
func (t *turns) block(x *httpapi.Exchange, role string, b *block, path, at string) error {
	switch {
	case b.Type == "text":
		if b.Text == nil {
			return httpapi.Invalid(at+".text", "is missing")
		}
		addText(t.last(role, path), *b.Text)
	case b.Type == "tool_use" && role == "assistant":
		if b.ID == nil || b.Name == nil || b.Input == nil {
			return httpapi.Invalid(at, "must have id, name and input")
		}
		m := t.last(role, path)
		m.ToolCalls = append(m.ToolCalls, &pb.ToolCall{Id: *b.ID, Name: *b.Name, Arguments: string(b.Input)})
	case b.Type == "tool_result" && role == "user":
		if b.ToolUseID == nil {
			return httpapi.Invalid(at+".tool_use_id", "is missing")
		}
		text := ""
		if b.Content != nil {
			var err error
			if text, err = b.Content.join(x, at+".content"); err != nil {
				return err
			}
		}
		t.messages = append(t.messages, &pb.ChatMessage{Role: "tool", ToolCallId: b.ToolUseID, Content: text})
		t.paths = append(t.paths, at)
	case b.Type == "thinking" && role == "assistant":
		if b.Thinking == nil {
			return httpapi.Invalid(at+".thinking", "is missing")
		}
		m := t.last(role, path)
		thinking := m.GetReasoning() + *b.Thinking
		m.Reasoning = &thinking
	case b.Type == "redacted_thinking":
		return x.Skip(at) // it is of another server
	default:
		return httpapi.Unsupported(at, "is a block of type %.32q in a message of the role %q, which is not supported: the models read text, and "+
			"results of their calls", b.Type, role)
	}
	return nil
}

// join returns the text of a content that has nothing else. Blocks are joined by line ends.
func (c *content) join(x *httpapi.Exchange, path string) (string, error) {
	if c.blocks == nil {
		return c.text, nil
	}
	texts := make([]string, len(c.blocks))
	for i := range c.blocks {
		b, at := &c.blocks[i], path+"["+strconv.Itoa(i)+"]"
		if b.Type != "text" {
			return "", httpapi.Unsupported(at, "is a block of type %.32q, which is not supported: the models read text only", b.Type)
		}
		if b.Text == nil {
			return "", httpapi.Invalid(at+".text", "is missing")
		}
		if err := b.skip(x, at); err != nil {
			return "", err
		}
		texts[i] = *b.Text
	}
	return strings.Join(texts, "\n"), nil
}
