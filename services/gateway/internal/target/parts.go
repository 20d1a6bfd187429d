package target

import (
	"strings"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// Run is a run of the text of one kind.
type Run struct {
	Kind pb.PartKind
	Text string
	// Of a call: its index, and in its first run its id and the name of the tool.
	Index int
	Call  *pb.CallStart
}

// ToolCall is a whole call of a tool.
type ToolCall struct {
	ID, Name  string
	Arguments string
}

// Runs returns the text of tokens by kind. Text without parts is content.
func Runs(t *pb.Tokens) []Run {
	text := t.GetText()
	if len(t.GetParts()) == 0 {
		if text == "" {
			return nil
		}
		return []Run{{Kind: pb.PartKind_PART_KIND_CONTENT, Text: text}}
	}
	runs := make([]Run, len(t.GetParts()))
	for i, p := range t.GetParts() {
		n := min(int(p.GetTextBytes()), len(text)) // more would be an error of the server
		runs[i] = Run{Kind: p.GetKind(), Text: text[:n], Index: int(p.GetCallIndex()), Call: p.GetCall()}
		text = text[n:]
	}
	return runs
}

// CutParts cuts the parts of a text in two, the first of so many bytes and with the beginnings of so many calls. A part that
// begins there is of the second, but for a call whose beginning is of the first.
func CutParts(parts []*pb.Part, bytes uint32, calls uint32) (head, rest []*pb.Part) {
	for i, p := range parts {
		n := p.GetTextBytes()
		switch {
		case p.GetCall() != nil && calls == 0, p.GetCall() == nil && bytes == 0 && n > 0:
			return head, parts[i:]
		case p.GetCall() != nil:
			calls--
		}
		if n <= bytes {
			head = append(head, p)
			bytes -= n
			continue
		}
		after := &pb.Part{Kind: p.GetKind(), TextBytes: n - bytes, CallIndex: p.GetCallIndex()}
		before := &pb.Part{Kind: p.GetKind(), TextBytes: bytes, CallIndex: p.GetCallIndex(), Call: p.GetCall()}
		return append(head, before), append([]*pb.Part{after}, parts[i+1:]...)
	}
	return head, nil
}

// Calls returns the number of calls that begin in tokens.
func Calls(t *pb.Tokens) (n uint32) {
	for _, p := range t.GetParts() {
		if p.GetCall() != nil {
			n++
		}
	}
	return n
}

// parted collects the parts of an output.
type parted struct {
	content, reasoning strings.Builder
	calls              []*callBuilder
}

type callBuilder struct {
	start     *pb.CallStart
	arguments strings.Builder
}

func (p *parted) add(t *pb.Tokens) {
	for _, r := range Runs(t) {
		switch r.Kind {
		case pb.PartKind_PART_KIND_REASONING:
			p.reasoning.WriteString(r.Text)
		case pb.PartKind_PART_KIND_TOOL_CALL:
			if r.Call != nil {
				p.calls = append(p.calls, &callBuilder{start: r.Call})
			}
			if n := len(p.calls); n > 0 {
				p.calls[n-1].arguments.WriteString(r.Text)
			}
		default:
			p.content.WriteString(r.Text)
		}
	}
}

// fill sets the parts of an output.
func (p *parted) fill(o *Output) {
	o.Text, o.Reasoning = p.content.String(), p.reasoning.String()
	for _, c := range p.calls {
		o.Calls = append(o.Calls, ToolCall{c.start.GetId(), c.start.GetName(), c.arguments.String()})
	}
}
