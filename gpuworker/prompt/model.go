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

// Sentinels of a request that a model cannot serve; match with errors.Is. batch.ErrTooLong is the one of lengths.
var (
	// ErrNoTokenizer: the request needs text, and the model's file has no tokenizer.
	ErrNoTokenizer = errors.New("the model has no tokenizer")
	// ErrNoTemplate: the request is a conversation, and the model's file has no chat template that can be used.
	ErrNoTemplate = errors.New("the model has no chat template")
	// ErrNoSuchTemplate: the conversation chooses a chat template by a name that the model does not have.
	ErrNoSuchTemplate = errors.New("the model has no chat template named")
	// ErrNoTokens: the tokenizer wrote the text with no token at all.
	ErrNoTokens = errors.New("the prompt's text became no tokens")
	// ErrContext: the stream may have more tokens than the worker's context holds. It comes as a *ContextError.
	ErrContext = errors.New("the worker's context is too short for the stream")
)

// ContextError reports a stream that a worker with a longer context can serve.
type ContextError struct {
	Model   string
	Context int // of the model on this worker, in tokens
	Needed  int // tokens of the prompt and the longest continuation; 0: the text is too long to be encoded here
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

// Model is what a loaded model offers to a request. Every field stays as it is while requests use it.
type Model struct {
	Name      string
	Tokenizer *tokenizer.Tokenizer // nil: it works by token ids
	Template  Template             // nil: it takes no conversations
	// Named are the templates that a conversation may choose by name.
	Named map[string]Named
	// TemplateProblem says why a chat template that the file has cannot be used; nil where there is none.
	TemplateProblem error
	BOS, EOS        int32   // -1: none
	EndIDs          []int32 // the tokens after which a generation is over
	SuppressedIDs   []int32 // the tokens that are never generated, ascending
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

// Loop knows the cache; batch.Loop is one.
type Loop interface {
	// Fit is how many tokens may follow a prompt of so many, of those wanted, or batch.ErrTooLong.
	Fit(prompt, wanted int) (most int, err error)
}

// Decoders makes the text decoders of a generation; the model has a tokenizer.
func (m Model) Decoders() generate.NewDecoder {
	return func(special bool) generate.TextDecoder {
		return m.Tokenizer.NewDecoder(tokenizer.DecodeOptions{ShowSpecial: special, Continues: true})
	}
}

// choose returns the template that a conversation chooses, nil with the problem of one that cannot be used. It fails with
// ErrNoSuchTemplate.
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

// Render writes a conversation of a tenant as the chat template that it chooses wants it. Besides ErrNoTemplate, ErrNoSuchTemplate
// and ErrNoTokenizer it fails with the errors of package template.
func (m Model) Render(ctx context.Context, tenant string, chat Chat) (template.Prompt, error) {
	by, problem, err := m.choose(chat)
	if err != nil {
		return template.Prompt{}, err
	}
	switch {
	case by == nil && problem != nil:
		return template.Prompt{}, fmt.Errorf("%w that can be used: %w", ErrNoTemplate, problem)
	case by == nil && len(m.Named) > 0:
		return template.Prompt{}, fmt.Errorf("%w without a name: choose one of %q", ErrNoTemplate, slices.Sorted(maps.Keys(m.Named)))
	case by == nil:
		return template.Prompt{}, fmt.Errorf("%w: %q takes prompts and token ids", ErrNoTemplate, m.Name)
	case m.Tokenizer == nil:
		return template.Prompt{}, fmt.Errorf("%w: %q works by token ids", ErrNoTokenizer, m.Name)
	}
	return by.Render(ctx, template.Input{
		Tenant:   tenant,
		Messages: chat.Messages, AddGenerationPrompt: chat.AddGenerationPrompt, Now: chat.Now,
		BOS: m.piece(m.BOS), EOS: m.piece(m.EOS), Variables: chat.Variables,
	})
}

// piece is the text of a token, "" for none.
func (m Model) piece(id int32) string {
	piece, _ := m.Tokenizer.Piece(id)
	return string(piece)
}

var (
	_ Template             = (*template.Template)(nil)
	_ generate.TextDecoder = (*tokenizer.Decoder)(nil)
)
