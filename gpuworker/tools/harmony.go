package tools

import (
	"strings"

	"github.com/millrace/millrace/gpuworker/guide"
)

// harmonyFamily is that of gpt-oss. An answer is messages, each with a header that names its channel:
//
//	<|channel|>analysis<|message|>reasoning<|end|>
//	<|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>
//	<|start|>assistant<|channel|>final<|message|>text<|return|>
//
// The prompt ends with <|start|>assistant. A call ends the answer, so there is one at most.
var harmonyFamily = &family{
	name: "harmony", machine: harmonyMachine,
	whole: func(_ Format, l Lexicon, a Answer, tools []indexed) (guide.Term, error) {
		begin, message, end := l.tag("<|channel|>"), l.tag("<|message|>"), l.tag("<|end|>")
		free := l.free("<|end|>", "<|start|>", "<|channel|>", "<|message|>")
		again := lit(end + l.tag("<|start|>") + "assistant")
		analysis := seq(lit(begin+"analysis"+message), free, again)
		preamble := seq(lit(begin+"commentary"+message), free, again)
		final := func(text guide.Term) guide.Term { return seq(lit(begin+"final"+message), text) }
		before, last := union(analysis, preamble), final(free)
		if a.Source != nil {
			before, last = analysis, final(guide.Term{Op: guide.Nested, Source: a.Source})
		}
		if a.Choice.Mode == None || len(tools) == 0 {
			return seq(upTo(maxMessages, before), last), nil
		}
		kind := union(lit(" "+l.tag("<|constrain|>")+"json"), lit(" json"), lit(""))
		call, err := eachTool(tools, func(t indexed, arguments guide.Term) guide.Term {
			to := " to=functions." + t.Name
			head := union(lit(begin+"commentary"+to), lit(to+begin+"commentary"), lit(begin+"analysis"+to))
			return seq(head, kind, lit(message), arguments)
		})
		if err != nil {
			return guide.Term{}, err
		}
		if a.Choice.Mode == Required {
			return seq(upTo(maxMessages, analysis), call), nil
		}
		return seq(upTo(maxMessages, before), union(call, last)), nil
	},
}

// maxMessages bounds the messages before the last one of an answer.
const maxMessages = 64

// States of harmony.
const (
	openState = iota // the beginning, where a header or, if no grammar forbids it, a text without one may be
	headerState
	analysisState
	finalState
	argumentsState
	endState
)

func harmonyMachine(_ Format, l Lexicon, calls bool) *machine {
	end := []exit{{mark: l.tag("<|end|>"), to: endState}, {mark: l.tag("<|start|>"), to: headerState}}
	open := content
	if calls { // the grammar begins with a header, which the answer's length may cut off
		open = skip
	}
	return &machine{
		start: openState, opened: openState, closed: openState,
		states: []state{
			openState: {mode: open, exits: end, lead: []exit{
				{mark: l.tag("<|channel|>"), to: headerState, do: keepMark}, {mark: "to=", to: headerState, do: keepMark},
			}},
			headerState:    {mode: header, exits: []exit{{mark: l.tag("<|message|>"), to: finalState, do: readHeader}}},
			analysisState:  {mode: reasoning, exits: end},
			finalState:     {mode: content, exits: end},
			argumentsState: {mode: object, to: endState},
			endState:       {mode: skip, exits: []exit{{mark: l.tag("<|start|>"), to: headerState}}},
		},
	}
}

// readHeader goes to the state of the message that a header describes.
func (p *Parser) readHeader(text string) {
	p.at = finalState
	if _, to, found := strings.Cut(text, "to=functions."); found {
		end := 0
		for end < len(to) && to[end] != ' ' && to[end] != '<' && to[end] != guide.Control[0] {
			end++
		}
		p.at = argumentsState
		p.begin(to[:end])
		return
	}
	if strings.Contains(text, "analysis") {
		p.at = analysisState
	}
}
