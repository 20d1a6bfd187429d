package template

import "time"

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
}

func newRenderArgs(in Input) *renderArgs {
	return &renderArgs{in.Messages, in.AddGenerationPrompt, in.BOS, in.EOS, in.Now}
}

// reply carries the text, or says what went wrong.
type reply struct {
	Text  string
	Fault fault
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
