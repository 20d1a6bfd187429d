package tools

import (
	"slices"

	"github.com/millrace/millrace/gpuworker/guide"
)

// Lexicon states which marks are control tokens of a vocabulary.
type Lexicon func(tag string) bool

// marks are all tags of all formats that may be control tokens.
var marks = []string{
	"<think>", "</think>", "<tool_call>", "</tool_call>", "[THINK]", "[/THINK]", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>",
	"<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", `<|"|>`, "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>",
}

// Marks returns the names of control tokens that formats distinguish.
func Marks() []string { return slices.Clone(marks) }

// tag is how a vocabulary spells a mark.
func (l Lexicon) tag(tag string) string {
	if l(tag) {
		return guide.Control + tag
	}
	return tag
}

// free is any text without marks that the vocabulary spells as text. Others are never in a text.
func (l Lexicon) free(tags ...string) guide.Term {
	t := guide.Term{Op: guide.Free}
	for _, tag := range tags {
		if !l(tag) {
			t.Without = append(t.Without, tag)
		}
	}
	return t
}

func lit(text string) guide.Term { return guide.Term{Text: text} }

func seq(of ...guide.Term) guide.Term { return guide.Term{Op: guide.Sequence, Of: of} }

func union(of ...guide.Term) guide.Term { return guide.Term{Op: guide.Union, Of: of} }

// upTo is t at most high times; high below 0: no bound.
func upTo(high int, t guide.Term) guide.Term {
	return guide.Term{Op: guide.Repeat, High: high, Of: []guide.Term{t}}
}

func optional(t guide.Term) guide.Term { return upTo(1, t) }

// regex is a text that matches an expression.
func regex(text string) guide.Term {
	return guide.Term{Op: guide.Nested, Source: &guide.Source{Kind: guide.Regex, Text: text}}
}

// space is white space before a mark.
func space() guide.Term { return regex(`[ \n]{0,4}`) }
