package tools

import (
	"slices"
	"strings"

	"github.com/millrace/millrace/gpuworker/guide"
)

// Format is how a model writes reasoning and calls. The zero value has neither.
type Format struct {
	Name string // "": it writes no calls
	// Open and Close are the tags around the reasoning; "": it is not marked.
	Open, Close string
	family      *family
}

// family is what formats of one name share.
type family struct {
	name string
	// parallel is whether one answer may have several calls.
	parallel bool
	// machine is the table of a parser, whose answers have calls or none.
	machine func(f Format, l Lexicon, calls bool) *machine
	// calls is one call or more, without the text before them.
	calls func(l Lexicon, tools []indexed, parallel bool) (guide.Term, error)
	// trigger begins a call, as a tag.
	trigger string
	// whole, if not nil, makes the whole constraint; see Format.Constraint.
	whole func(f Format, l Lexicon, a Answer, tools []indexed) (guide.Term, error)
	types func(tools []Tool) typesOf
}

// families are the formats with calls.
var families = []*family{harmonyFamily, gemmaFamily, mistralFamily, mistralJSONFamily, coderFamily, hermesFamily, llamaFamily}

// Names are the names of the formats with calls.
func Names() []string {
	names := make([]string, len(families))
	for i, f := range families {
		names[i] = f.name
	}
	slices.Sort(names)
	return names
}

// Detect returns the format that a chat template shows.
func Detect(template string) Format {
	has := func(marks ...string) bool {
		return !slices.ContainsFunc(marks, func(m string) bool { return !strings.Contains(template, m) })
	}
	f := Format{}
	switch {
	case has("<|channel|>", "<|message|>", "<|start|>"):
		f.family = harmonyFamily
	case has("<|tool_call>call:"):
		f.family = gemmaFamily
	case has("[TOOL_CALLS]", "[ARGS]"):
		f.family = mistralFamily
	case has("[TOOL_CALLS]"):
		f.family = mistralJSONFamily
	case has("<function=", "<parameter="):
		f.family = coderFamily
	case has("<tool_call>", `"arguments"`):
		f.family = hermesFamily
	case has("<|start_header_id|>", `"parameters"`, "tools"):
		f.family = llamaFamily
	}
	switch {
	case f.family == harmonyFamily:
		f.Open, f.Close = "<|channel|>", "<|end|>"
	case has("<|channel>", "<channel|>"):
		f.Open, f.Close = "<|channel>", "<channel|>"
	case has("[THINK]"):
		f.Open, f.Close = "[THINK]", "[/THINK]"
	case has("</think>"):
		f.Open, f.Close = "<think>", "</think>"
	}
	if f.family != nil {
		f.Name = f.family.name
	}
	return f
}

// Named returns the format with another way of writing calls, and false if there is none of that name.
func (f Format) Named(name string) (Format, bool) {
	i := slices.IndexFunc(families, func(x *family) bool { return x.name == name })
	if i < 0 {
		return Format{}, false
	}
	if f.family = families[i]; f.family == harmonyFamily {
		f.Open, f.Close = "<|channel|>", "<|end|>"
	} else if f.Open == "<|channel|>" {
		f.Open, f.Close = "", ""
	}
	f.Name = name
	return f, true
}

// Reasons reports whether marks separate the reasoning from the answer.
func (f Format) Reasons() bool { return f.Open != "" }

// Parallel reports whether one answer may have several calls.
func (f Format) Parallel() bool { return f.family != nil && f.family.parallel }

// Opening is how a prompt ends, and so where an answer begins.
type Opening int

// Openings.
const (
	Neutral Opening = iota // reasoning may begin
	Opened                 // inside the reasoning
	Closed                 // after it
)

// OpeningOf returns how a rendered prompt ends.
func (f Format) OpeningOf(prompt string) Opening {
	end := strings.TrimRight(prompt, " \t\r\n")
	switch {
	case f.Open == "" || f.family == harmonyFamily:
		return Neutral
	case strings.HasSuffix(end, f.Close):
		return Closed
	case strings.HasSuffix(end, strings.TrimRight(f.open(), "\n")):
		return Opened
	}
	return Neutral
}

// open is the text that begins the reasoning; the tag is its beginning.
func (f Format) open() string {
	if f.Open == "<|channel>" {
		return f.Open + "thought\n"
	}
	return f.Open
}

// Answer is what an answer may be.
type Answer struct {
	Opening Opening
	Tools   []Tool
	Choice  Choice
	// Source is what the text after the reasoning obeys; nil: any text. With it, an answer has calls or text.
	Source *guide.Source
	// Budget is the most tokens of reasoning; nil: any number. The format must have tags around the reasoning.
	Budget *int
}

// Constraint returns the constraint of an answer, nil if it may be any text, or an *Error.
func (f Format) Constraint(l Lexicon, a Answer) (*guide.Source, error) {
	var tools []indexed
	if f.family != nil {
		tools = a.Choice.chosen(a.Tools)
	}
	limit := f.limit(l, a)
	if len(tools) == 0 && a.Source == nil {
		if limit == nil {
			return nil, nil
		}
		term := seq(append(f.before(l, a), f.text(l, a))...)
		return &guide.Source{Kind: guide.Composed, Term: &term, Limit: limit}, nil
	}
	if f.family != nil {
		a.Choice.Parallel = a.Choice.Parallel && f.family.parallel && a.Choice.Name == ""
	}
	constrain := f.tagged
	if f.family != nil && f.family.whole != nil {
		constrain = func(l Lexicon, a Answer, tools []indexed) (guide.Term, error) { return f.family.whole(f, l, a, tools) }
	}
	term, err := constrain(l, a, tools)
	if err != nil {
		return nil, err
	}
	source := &guide.Source{Kind: guide.Composed, Term: &term, Limit: limit}
	if len(tools) > 0 {
		source.Ignored = *tools[0].ignored
	}
	return source, nil
}

// Budgets reports whether the tokens of the reasoning can be bounded: whether it is between two tags. Harmony has it in messages.
func (f Format) Budgets() bool { return f.Open != "" && f.family != harmonyFamily }

// limit is the bound of the reasoning's tokens; nil: none.
func (f Format) limit(l Lexicon, a Answer) *guide.Limit {
	if a.Budget == nil || !f.Budgets() || a.Opening == Closed {
		return nil
	}
	limit := &guide.Limit{Close: l.tag(f.Close), Tokens: *a.Budget}
	if a.Opening == Neutral {
		limit.Open = l.tag(f.Open) + f.open()[len(f.Open):]
	}
	return limit
}

// before is the reasoning before an answer, in a format with tags.
func (f Format) before(l Lexicon, a Answer) []guide.Term {
	if f.Open == "" || a.Opening == Closed {
		return nil
	}
	rest := seq(l.free(f.Close), lit(l.tag(f.Close)), space())
	if a.Opening == Opened {
		return []guide.Term{rest}
	}
	return []guide.Term{optional(seq(lit(l.tag(f.Open)+f.open()[len(f.Open):]), rest))}
}

// text is the text of an answer without some tags. What begins like reasoning is reasoning.
func (f Format) text(l Lexicon, a Answer, tags ...string) guide.Term {
	text := l.free(tags...)
	if a.Opening == Neutral && f.Open != "" && !l(f.Open) {
		text.NotFirst = append(text.NotFirst, f.open())
	}
	return text
}

// tagged is the constraint of a format with tags around the reasoning: reasoning, text, calls.
func (f Format) tagged(l Lexicon, a Answer, tools []indexed) (guide.Term, error) {
	parts := f.before(l, a)
	if a.Source != nil && (a.Choice.Mode == None || len(tools) == 0) {
		return seq(append(parts, guide.Term{Op: guide.Nested, Source: a.Source})...), nil
	}
	text := f.text(l, a, f.family.trigger)
	if a.Choice.Mode == None {
		return seq(append(parts, text)...), nil
	}
	calls, err := f.family.calls(l, tools, a.Choice.Parallel)
	if err != nil {
		return guide.Term{}, err
	}
	if a.Choice.Mode == Required {
		return seq(append(parts, space(), calls)...), nil
	}
	if a.Source != nil {
		return seq(append(parts, union(guide.Term{Op: guide.Nested, Source: a.Source}, calls))...), nil
	}
	return seq(append(parts, text, optional(calls))...), nil
}

// Parser returns the parser of an answer.
func (f Format) Parser(l Lexicon, a Answer) *Parser {
	build, calls := plainMachine, len(a.Tools) > 0 && a.Choice.Mode != None
	p := &Parser{}
	if f.family != nil {
		build = f.family.machine
		if f.family.types != nil && calls {
			p.types = f.family.types(a.Tools)
		}
	}
	p.machine = build(f, l, calls)
	if calls && a.Choice.Mode == Required && f.family != harmonyFamily { // there is no content; what a mark begins with is none
		for i := range p.machine.states {
			if s := &p.machine.states[i]; s.mode == content {
				s.mode = skip
			}
		}
	}
	if a.Source != nil && f.family != harmonyFamily { // a constrained text may contain what begins a call elsewhere
		for _, at := range []int{beginState, contentState} {
			s := &p.machine.states[at]
			s.lead, s.exits, s.trim = append(s.lead, s.exits...), nil, false
		}
	}
	for _, tag := range marks {
		if l(tag) {
			p.machine.marks = append(p.machine.marks, tag)
		}
	}
	switch a.Opening {
	case Opened:
		p.at = p.machine.opened
	case Closed:
		p.at = p.machine.closed
	case Neutral:
		p.at = p.machine.start
	}
	return p
}

// States that all formats with tags share.
const (
	beginState   = iota // before the reasoning
	reasonState         // in it
	contentState        // after it, or without it
	ownStates           // those of a format follow
)

// taggedMachine is the table of a format with tags around the reasoning. call is the mark that begins a call, and
// states are those that it leads to, the first one first.
func taggedMachine(f Format, l Lexicon, call string, states ...state) *machine {
	m := &machine{start: contentState, opened: reasonState, closed: contentState}
	text := state{mode: content}
	if call != "" {
		text.trim = true
		text.exits = []exit{{mark: call, to: ownStates}}
	}
	begin, reason := text, state{mode: reasoning, skipLead: true, trim: true}
	if f.Open != "" {
		m.start = beginState
		begin.lead = []exit{{mark: l.tag(f.Open) + f.open()[len(f.Open):], to: reasonState}}
		reason.exits = []exit{{mark: l.tag(f.Close), to: contentState}}
		text.skipLead = true
	}
	m.states = append([]state{begin, reason, text}, states...)
	return m
}

// plainMachine is the table of a format without calls.
func plainMachine(f Format, l Lexicon, _ bool) *machine { return taggedMachine(f, l, "") }
