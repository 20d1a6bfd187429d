package template

import (
	"strings"
	"time"
)

// The two processes talk JSON over the child's standard input and output: requests down, one reply each up. The first
// request parses, all others render.

type request struct {
	Parse  *parseArgs  `json:",omitempty"`
	Render *renderArgs `json:",omitempty"`
}

type parseArgs struct {
	Source string
	Limits Options
}

type renderArgs struct {
	Messages            []Message
	AddGenerationPrompt bool
	BOS, EOS            string
	Now                 time.Time
	Variables           map[string]any `json:",omitempty"` // JSON writes maps in the order of their keys
}

func newRenderArgs(in Input) *renderArgs {
	return &renderArgs{in.Messages, in.AddGenerationPrompt, in.BOS, in.EOS, in.Now, in.Variables}
}

// reply carries the rendered text, or says what went wrong.
type reply struct {
	Pieces pieces `json:",omitempty"`
	Text   string `json:",omitempty"` // of a fault
	Fault  fault  `json:",omitempty"`
}

// pieces are a text: what the template wrote and what the caller gave in turn, beginning with the template. Whatever JSON
// makes of a piece, it cannot move a border.
type pieces []string

// cut makes pieces of a text whose ranges own the template wrote.
func cut(text string, own [][2]int) pieces {
	var out pieces
	at := 0
	for _, span := range own {
		if span[0] > 0 {
			if at == 0 {
				out = append(out, "")
			}
			out = append(out, text[at:span[0]])
		}
		out = append(out, text[span[0]:span[1]])
		at = span[1]
	}
	if at < len(text) {
		if at == 0 {
			out = append(out, "")
		}
		out = append(out, text[at:])
	}
	return out
}

// joined is the text of pieces.
func joined(of pieces) Prompt {
	var p Prompt
	at := 0
	for i, piece := range of {
		if i%2 == 0 && piece != "" {
			p.Own = append(p.Own, [2]int{at, at + len(piece)})
		}
		at += len(piece)
	}
	p.Text = strings.Join(of, "")
	return p
}

type fault int

const (
	faultNone     fault = iota
	faultTemplate       // becomes ErrTemplate
	faultLimit          // becomes ErrLimit
)

// childArgument makes a binary a template child; exitMemory and exitTime are how the child says that it stopped itself.
const (
	childArgument = "__millrace_chat_template"
	exitMemory    = 91
	exitTime      = 92
)
