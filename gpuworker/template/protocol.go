package template

import (
	"encoding/binary"
	"fmt"
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
	Text  string
	Runs  []byte `json:",omitempty"` // of a rendered text
	Fault fault  `json:",omitempty"`
}

// runs returns the lengths of what the template wrote and of what the caller gave in turn, as uvarints, beginning with the template.
// own are the ranges of a text of n bytes that the template wrote. A caller can make a prompt alternate at every byte, so the lengths
// must be small: a list of the parts took 70 bytes of the worker's memory for each of the prompt's.
func runs(n int, own [][2]int) (out []byte) {
	at := 0
	for i, span := range own {
		if i > 0 || span[0] > 0 {
			if i == 0 {
				out = binary.AppendUvarint(out, 0)
			}
			out = binary.AppendUvarint(out, uint64(span[0]-at))
		}
		out = binary.AppendUvarint(out, uint64(span[1]-span[0]))
		at = span[1]
	}
	if at < n {
		if at == 0 {
			out = binary.AppendUvarint(out, 0)
		}
		out = binary.AppendUvarint(out, uint64(n-at))
	}
	return out
}

// prompt is the rendered text. It fails if the lengths are not the text's: JSON replaces bytes that are not UTF-8 by longer ones, and no
// border may move.
func (r reply) prompt() (Prompt, error) {
	count := 0
	for _, b := range r.Runs {
		if b < 0x80 { // the last byte of a length
			count++
		}
	}
	p, at, rest := Prompt{Text: r.Text}, 0, r.Runs
	for template := true; len(rest) > 0; template = !template {
		n, width := binary.Uvarint(rest)
		if width <= 0 || n > uint64(len(r.Text)-at) {
			return Prompt{}, errBorders
		}
		if rest = rest[width:]; template && n > 0 {
			if p.Own == nil {
				p.Own = make([][2]int, 0, (count+1)/2)
			}
			p.Own = append(p.Own, [2]int{at, at + int(n)})
		}
		at += int(n)
	}
	if at != len(r.Text) {
		return Prompt{}, errBorders
	}
	return p, nil
}

var errBorders = fmt.Errorf("%w: its text is not as long as it says", ErrChild)

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
