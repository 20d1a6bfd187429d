package prompt

import (
	"time"

	"github.com/millrace/millrace/gpuworker/template"
	"github.com/millrace/millrace/gpuworker/tokenizer"
)

// Input is what a request begins with. Of its parts one is used: IDs if there are any, else Chat if there is one, else Text.
type Input struct {
	Text string
	IDs  []int32 // taken as they are, each in the vocabulary
	Chat *Chat
}

// Chat is a conversation.
type Chat struct {
	Messages            []template.Message
	AddGenerationPrompt bool // ends with the beginning of the assistant's turn
	Now                 time.Time
	Variables           map[string]any // further ones of the template; template.Input says what they may be
	Template            string         // which of the model's templates; "": the default one
	// ParseSpecial reads the names of special tokens in the messages as those tokens too. It lets a message forge turns.
	ParseSpecial bool
}

// Special says how special tokens of the input's text are treated unless the caller says otherwise: a text gets the model's
// own around it and none is read out of it, since it comes from outside. A template writes its own; Prompt.Own says where.
func (in Input) Special() tokenizer.EncodeOptions {
	return tokenizer.EncodeOptions{AddSpecial: in.Chat == nil, ParseSpecial: in.Chat != nil && in.Chat.ParseSpecial}
}
