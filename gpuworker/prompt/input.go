package prompt

import (
	"time"

	"github.com/millrace/millrace/gpuworker/template"
	"github.com/millrace/millrace/gpuworker/tokenizer"
)

// Input is the start of a request. Build uses IDs if there are any, else Chat if set, else Text.
type Input struct {
	Text string
	IDs  []int32 // used unchanged, each in the vocabulary
	Chat *Chat
	// Rendered is what Chat gives, if it was rendered already.
	Rendered *template.Prompt
}

// Chat is a conversation.
type Chat struct {
	Messages            []template.Message
	Tools               []template.Tool
	AddGenerationPrompt bool // end with the start of the assistant's message
	Now                 time.Time
	Variables           map[string]any // further variables of the template; see template.Input
	Template            string         // name of the template; "": the default one
	// ParseSpecial also parses the names of special tokens in messages. A message can then forge
	// messages of other roles.
	ParseSpecial bool
}

// Special is the default treatment of special tokens: the tokenizer adds the model's own to a text
// and parses none in it, because the text comes from outside. A template writes its own; Prompt.Own
// locates them.
func (in Input) Special() tokenizer.EncodeOptions {
	return tokenizer.EncodeOptions{AddSpecial: in.Chat == nil, ParseSpecial: in.Chat != nil && in.Chat.ParseSpecial}
}
