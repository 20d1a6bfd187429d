package template

import (
	"encoding/binary"
	"fmt"
	"time"
)

// The two processes talk JSON over the child's standard input and output: requests down, one reply
// each up. The first request parses, all others render.

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
	Tools               []Tool `json:",omitempty"`
	AddGenerationPrompt bool
	BOS, EOS            string
	Now                 time.Time
	Variables           map[string]any `json:",omitempty"` // JSON writes maps in the order of their keys
}

func newRenderArgs(in Input) *renderArgs {
	return &renderArgs{in.Messages, in.Tools, in.AddGenerationPrompt, in.BOS, in.EOS, in.Now, in.Variables}
}

// reply is the rendered text, or the problem.
type reply struct {
	Text  string
	Runs  []byte `json:",omitempty"` // of a rendered text
	Fault fault  `json:",omitempty"`
}

// runs encodes the alternating lengths of the template's and the caller's parts as uvarints,
// starting with the template. own are the ranges of a text of n bytes that the template wrote. The
// encoding must be small, because a caller can make a prompt alternate at every byte: a list of
// parts took 70 bytes of memory for each byte.
func runs(n int, own [][2]int) (out []byte) {
	pos := 0
	for i, span := range own {
		if i > 0 || span[0] > 0 {
			if i == 0 {
				out = binary.AppendUvarint(out, 0)
			}
			out = binary.AppendUvarint(out, uint64(span[0]-pos))
		}
		out = binary.AppendUvarint(out, uint64(span[1]-span[0]))
		pos = span[1]
	}
	if pos < n {
		if pos == 0 {
			out = binary.AppendUvarint(out, 0)
		}
		out = binary.AppendUvarint(out, uint64(n-pos))
	}
	return out
}

// prompt is the rendered text. It is an error if the lengths do not match the text, because JSON
// replaces invalid UTF-8 by longer bytes and no border may move.
func (r reply) prompt() (Prompt, error) {
	count := 0
	for _, b := range r.Runs {
		if b < 0x80 { // last byte of a length
			count++
		}
	}
	p, pos, rest := Prompt{Text: r.Text}, 0, r.Runs
	for template := true; len(rest) > 0; template = !template {
		n, width := binary.Uvarint(rest)
		if width <= 0 || n > uint64(len(r.Text)-pos) {
			return Prompt{}, errBorders
		}
		if rest = rest[width:]; template && n > 0 {
			if p.Own == nil {
				p.Own = make([][2]int, 0, (count+1)/2)
			}
			p.Own = append(p.Own, [2]int{pos, pos + int(n)})
		}
		pos += int(n)
	}
	if pos != len(r.Text) {
		return Prompt{}, errBorders
	}
	return p, nil
}

var errBorders = fmt.Errorf("%w: its text does not have the stated length", ErrChild)

type fault int

// childArgument makes a binary a template child. exitMemory and exitTime are the exit statuses of a
// child that stopped itself.
const (
	faultNone     fault = iota
	faultTemplate       // becomes ErrTemplate
	faultLimit          // becomes ErrLimit
)

// childArgument makes a binary a template child; exitMemory and exitTime are how the child says
// that it stopped itself.
const (
	childArgument = "__millrace_chat_template"
	exitMemory    = 91
	exitTime      = 92
)
