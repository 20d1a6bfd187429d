package prompt

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/millrace/millrace/gpuworker/generate"
	"github.com/millrace/millrace/gpuworker/template"
	"github.com/millrace/millrace/gpuworker/tokenizer"
)

// Errors of a request that a model cannot serve, for errors.Is. batch.ErrTooLong is the one for
// lengths.
var (
	// ErrNoTokenizer: the request needs text, but the model's file has no tokenizer.
	ErrNoTokenizer = errors.New("the model has no tokenizer")
	// ErrNoTemplate: the request is a conversation, but the model's file has no usable chat
	// template.
	ErrNoTemplate = errors.New("the model has no chat template")
	// ErrNoSuchTemplate: the model has no chat template of the chosen name.
	ErrNoSuchTemplate = errors.New("the model has no chat template named")
	// ErrNoTokens: the tokenizer encoded the text to no token.
	ErrNoTokens = errors.New("the prompt's text became no tokens")
	// ErrNoEnd: the answer obeys a grammar, and no end token could end it.
	ErrNoEnd = errors.New("guided needs an end token, and the model has none: give one that is no text in stopping.stop_token_ids")
	// ErrContext: the stream may be longer than the worker's context. It comes as a *ContextError.
	ErrContext = errors.New("the worker's context is too short for the stream")
)

// ContextError reports a stream that a worker with a longer context can serve.
type ContextError struct {
	Model   string
	Context int // of the model on this worker, in tokens
	Needed  int // tokens of prompt and longest continuation; 0: the text was too long to encode
}

// Error implements error.
func (e *ContextError) Error() string {
	needed := "more"
	if e.Needed > 0 {
		needed = strconv.Itoa(e.Needed)
	}
	return fmt.Sprintf("%v: it may have %s tokens, and %q has a context of %d here: send it to a worker with a longer context, "+
		"or load the model with a larger one", ErrContext, needed, e.Model, e.Context)
}

// Unwrap returns ErrContext.
func (e *ContextError) Unwrap() error { return ErrContext }

// Model is the part of a loaded model that a request uses. Its fields do not change while requests
// use it.
type Model struct {
	Name      string
	Tokenizer *tokenizer.Tokenizer // nil: it works on token ids
	Template  Template             // nil: no conversations
	// Named are the templates that a conversation may choose by name.
	Named map[string]Named
	// TemplateProblem is why the file's chat template cannot be used; nil if it can.
	TemplateProblem error
	BOS, EOS        int32   // -1: none
	EndIDs          []int32 // tokens that end a generation
	SuppressedIDs   []int32 // tokens that are never generated, ascending
	Vocabulary      int     // number of token ids; needed with SuppressedIDs
	Context         int     // tokens of the longest sequence
	Loop            Loop
}

// Named is a template with a name. If Problem is not nil it cannot be used.
type Named struct {
	Template Template
	Problem  error
}

// Template renders conversations; template.Template is one.
type Template interface {
	Render(ctx context.Context, in template.Input) (template.Prompt, error)
	// WritesMessages reports whether the template is known to write the content of every message.
	WritesMessages(ctx context.Context) bool
}

// Loop is the part of a step loop that Build uses; batch.Loop is one.
type Loop interface {
	// Fit returns how many of the wanted tokens may follow a prompt of this length, or
	// batch.ErrTooLong.
	Fit(prompt, wanted int) (most int, err error)
}

// Decoders returns the text decoders of a generation. The model must have a tokenizer.
func (m Model) Decoders() generate.NewDecoder {
	return func(special bool) generate.TextDecoder {
		return m.Tokenizer.NewDecoder(tokenizer.DecodeOptions{ShowSpecial: special, Continues: true})
	}
}

// choose returns the template that a conversation chooses, or nil and its problem if it cannot be
// used. It returns ErrNoSuchTemplate for an unknown name.
func (m Model) choose(chat Chat) (by Template, problem, err error) {
	if chat.Template == "" {
		return m.Template, m.TemplateProblem, nil
	}
	named, ok := m.Named[chat.Template]
	if !ok {
		return nil, nil, fmt.Errorf("%w %.64q: it has %q", ErrNoSuchTemplate, chat.Template, slices.Sorted(maps.Keys(m.Named)))
	}
	return named.Template, named.Problem, nil
}

// Render writes a tenant's conversation with the chat template that it chooses. Besides
// ErrNoTemplate, ErrNoSuchTemplate and ErrNoTokenizer it returns the errors of package template.
func (m Model) Render(ctx context.Context, tenant string, chat Chat) (template.Prompt, error) {
	tmpl, problem, err := m.choose(chat)
	if err != nil {
		return template.Prompt{}, err
	}
	switch {
	case tmpl == nil && problem != nil:
		return template.Prompt{}, fmt.Errorf("%w that can be used: %w", ErrNoTemplate, problem)
	case tmpl == nil && len(m.Named) > 0:
		return template.Prompt{}, fmt.Errorf("%w without a name: choose one of %q", ErrNoTemplate, slices.Sorted(maps.Keys(m.Named)))
	case tmpl == nil:
		return template.Prompt{}, fmt.Errorf("%w: %q takes prompts and token ids", ErrNoTemplate, m.Name)
	case m.Tokenizer == nil:
		return template.Prompt{}, fmt.Errorf("%w: %q works by token ids", ErrNoTokenizer, m.Name)
	}
	return tmpl.Render(ctx, template.Input{
		Tenant:   tenant,
		Messages: chat.Messages, Tools: chat.Tools, AddGenerationPrompt: chat.AddGenerationPrompt, Now: chat.Now,
		BOS: m.piece(m.BOS), EOS: m.piece(m.EOS), Variables: chat.Variables,
	})
}

// piece is the text of a token; "" for no token.
func (m Model) piece(id int32) string {
	piece, _ := m.Tokenizer.Piece(id)
	return string(piece)
}

var (
	_ Template             = (*template.Template)(nil)
	_ generate.TextDecoder = (*tokenizer.Decoder)(nil)
)
