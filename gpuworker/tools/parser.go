package tools

import (
	"encoding/json"
	"strings"

	"github.com/millrace/millrace/gpuworker/guide"
)

// Kind is what a part of an answer is.
type Kind int

// Kinds of parts.
const (
	Content Kind = iota + 1
	Reasoning
	Call // arguments of a call
)

// Part is a piece of an answer.
type Part struct {
	Kind Kind
	Text string
	// Index is the index of a call, from 0. Name is set in its first part, whose text may be empty.
	Index int
	Name  string
}

// Parser divides the bytes of one answer into parts. Its state follows from the bytes alone. It belongs to one
// goroutine. Create it with Format.Parser.
type Parser struct {
	machine *machine
	types   typesOf
	at      int
	begun   bool   // the lead of the state has passed
	buf     string // bytes that wait for more, no longer than a mark and maxSpace
	out     []Part

	name  []byte // of a tool, a header or an argument
	tool  string
	calls int
	json  jsonDepth
	pairs pairsState
	args  int // arguments of the call so far
	value valueState
}

// maxName bounds what a parser keeps of a name or header. A constraint allows none that is longer.
const maxName = 512

// maxSpace bounds the white space that waits for a mark before which it is dropped.
const maxSpace = 64

// Push adds text, which is valid UTF-8 in all, and returns the parts that it completes. The result is valid until the
// next call.
func (p *Parser) Push(text string) []Part {
	p.out = p.out[:0]
	p.buf += text
	p.run(false)
	return p.out
}

// Control adds a control token.
func (p *Parser) Control(tag string) []Part { return p.Push(guide.Control + tag) }

// Flush ends the answer and returns the parts of what waited.
func (p *Parser) Flush() []Part {
	p.out = p.out[:0]
	p.run(true)
	return p.out
}

// Reasons reports whether the next byte belongs to the reasoning.
func (p *Parser) Reasons() bool { return p.machine.states[p.at].mode == reasoning }

// Calls returns the number of calls so far.
func (p *Parser) Calls() int { return p.calls }

func (p *Parser) run(last bool) {
	for p.buf != "" {
		before, at := len(p.buf), p.at
		switch s := &p.machine.states[p.at]; s.mode {
		case object:
			p.object(s)
		case pairs:
			p.pairsText(s, last)
		default:
			p.text(s, last)
		}
		if len(p.buf) == before && p.at == at {
			return
		}
	}
}

// text consumes bytes of a state that ends at a mark.
func (p *Parser) text(s *state, last bool) {
	if !p.begun {
		rest := strings.TrimLeft(p.buf, " \t\r\n")
		if s.skipLead {
			p.buf = rest
		}
		near := len(p.buf)-len(rest) < maxSpace
		for _, e := range s.lead {
			if near && strings.HasPrefix(rest, e.mark) {
				p.buf = rest[len(e.mark):]
				p.leave(e)
				return
			}
			if near && strings.HasPrefix(e.mark, rest) && !last {
				return
			}
		}
		if p.buf == "" {
			return
		}
		p.begun = true
	}
	first, found := len(p.buf), exit{}
	for _, e := range s.exits {
		if i := strings.Index(p.buf, e.mark); i >= 0 && (i < first || i == first && len(e.mark) > len(found.mark)) {
			first, found = i, e
		}
	}
	if found.mark != "" {
		text, rest := p.buf[:first], p.buf[first+len(found.mark):]
		if s.trim {
			text = text[:len(text)-spaceBefore(text)]
		}
		p.emit(s.mode, text)
		p.buf = rest
		p.leave(found)
		return
	}
	keep := 0
	if !last {
		keep = s.held(p.buf)
	}
	p.emit(s.mode, p.buf[:len(p.buf)-keep])
	p.buf = p.buf[len(p.buf)-keep:]
}

// held is the length of the end of a text that may belong to a mark, with the white space before it that the mark
// would drop.
func (s *state) held(text string) (keep int) {
	for _, e := range s.exits {
		for n := min(len(e.mark)-1, len(text)); n > keep; n-- {
			if strings.HasSuffix(text, e.mark[:n]) {
				keep = n
			}
		}
	}
	if s.trim && len(s.exits) > 0 {
		keep += spaceBefore(text[:len(text)-keep])
	}
	return keep
}

// spaceBefore is how much white space at the end of a text a mark behind it would drop.
func spaceBefore(text string) int {
	return min(len(text)-len(strings.TrimRight(text, " \t\r\n")), maxSpace)
}

// leave goes to the state behind a mark.
func (p *Parser) leave(e exit) {
	p.at, p.begun = e.to, false
	switch e.do {
	case nothing:
		return
	case keepMark:
		p.buf = e.mark + p.buf
	case startCall, startPairs:
		p.begin(string(p.name))
	case shutObject:
		p.emitArguments(closing(p.args))
	case startValue:
		p.startValue(string(p.name))
	case endValue:
		p.endValue()
	case readHeader:
		p.readHeader(string(p.name))
	}
	if p.name = p.name[:0]; e.do == startPairs {
		p.buf = e.mark[len(e.mark)-1:] + p.buf
	}
}

// begin begins a call.
func (p *Parser) begin(tool string) {
	p.out = append(p.out, Part{Kind: Call, Index: p.calls, Name: tool})
	p.tool, p.args, p.json, p.pairs = tool, 0, jsonDepth{}, pairsState{}
	p.calls++
}

// emit adds text of a mode.
func (p *Parser) emit(m mode, text string) {
	switch m {
	case content:
		p.add(Content, p.printable(text))
	case reasoning:
		p.add(Reasoning, p.printable(text))
	case name, key, header:
		p.name = append(p.name, text[:min(len(text), maxName-len(p.name))]...)
	case value:
		p.valueText(p.printable(text))
	case skip, object, pairs:
	}
}

// printable returns a text without control tokens, which have no meaning where they are.
func (p *Parser) printable(text string) string {
	for {
		before, rest, found := strings.Cut(text, guide.Control)
		if !found {
			return text
		}
		longest := ""
		for _, m := range p.machine.marks {
			if strings.HasPrefix(rest, m) && len(m) > len(longest) {
				longest = m
			}
		}
		text = before + rest[len(longest):]
	}
}

func (p *Parser) emitArguments(text string) { p.add(Call, text) }

func (p *Parser) add(k Kind, text string) {
	if text == "" {
		return
	}
	index := 0
	if k == Call {
		index = p.calls - 1
	}
	if n := len(p.out); n > 0 && p.out[n-1].Kind == k && p.out[n-1].Index == index {
		p.out[n-1].Text += text
		return
	}
	p.out = append(p.out, Part{Kind: k, Text: text, Index: index})
}

// jsonDepth is how far a JSON object has got.
type jsonDepth struct {
	open            int
	quoted, escaped bool
}

// object passes a JSON object through, up to its end.
func (p *Parser) object(s *state) {
	for i := range len(p.buf) {
		if p.json.next(p.buf[i]) {
			p.emitArguments(p.printable(p.buf[:i+1]))
			p.buf = p.buf[i+1:]
			p.at, p.begun = s.to, false
			return
		}
	}
	p.emitArguments(p.printable(p.buf))
	p.buf = ""
}

// next adds a byte and reports whether it ends the object.
func (d *jsonDepth) next(c byte) bool {
	switch {
	case d.escaped:
		d.escaped = false
	case d.quoted:
		d.escaped, d.quoted = c == '\\', c != '"'
	case c == '"':
		d.quoted = true
	case c == '{' || c == '[':
		d.open++
	case c == '}' || c == ']':
		d.open--
		return d.open <= 0
	}
	return false
}

// quoteJSON returns a text as a JSON string.
func quoteJSON(text string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(text); err != nil {
		panic("tools: a text has no JSON: " + err.Error()) // not reached: bytes that are not UTF-8 are replaced
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// escapeJSON is the inside of quoteJSON.
func escapeJSON(text string) string {
	quoted := quoteJSON(text)
	return quoted[1 : len(quoted)-1]
}
