package prompt

import (
	"context"
	"fmt"
	"strings"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/template"
	"github.com/millrace/millrace/gpuworker/tokenizer"
	"github.com/millrace/millrace/internal/fairsem"
)

const (
	// largeText is the length from which encoding a text takes milliseconds.
	largeText = 64 << 10
	// largeTexts bounds the bytes of large texts that are encoded at once, because encoding needs
	// up to 28 bytes of memory for each byte.
	largeTexts = 4 << 20
)

// Encoder encodes texts, a bounded number at once, fairly by tenant. A text below 64 KiB never
// waits for a larger one. The caller must bound the texts that wait. Create it with NewEncoder. It
// is safe for concurrent use.
type Encoder struct{ slots *fairsem.Semaphore }

// NewEncoder returns an encoder that runs at most atOnce small texts and half as many large ones at
// once. The number of processors is a good value.
func NewEncoder(atOnce int) *Encoder {
	return &Encoder{fairsem.New(fairsem.Config{Small: atOnce, Large: atOnce / 2, LargeFrom: largeText, LargeBytes: largeTexts})}
}

// Acquire waits for a slot for a tenant's text of size bytes. The caller must call release, even if
// it panics.
func (e *Encoder) Acquire(ctx context.Context, tenant string, size int) (release func(), err error) {
	return e.slots.Acquire(ctx, tenant, size)
}

// Encode waits for a slot and encodes a tenant's text.
func (e *Encoder) Encode(ctx context.Context, m Model, tenant, text string, o tokenizer.EncodeOptions) ([]int32, error) {
	if m.Tokenizer == nil {
		return nil, fmt.Errorf("%w: %q works by token ids", ErrNoTokenizer, m.Name)
	}
	release, err := e.Acquire(ctx, tenant, len(text))
	if err != nil {
		return nil, err
	}
	defer release()
	return m.Tokenizer.Encode(text, o), nil
}

// ids returns the prompt of a tenant's input.
func (e *Encoder) ids(ctx context.Context, m Model, tenant string, in Input) (ids []int32, err error) {
	if len(in.IDs) > 0 {
		return in.IDs, nil
	}
	text, special := in.Text, in.Special()
	if in.Chat != nil {
		rendered := in.Rendered
		if rendered == nil {
			out, err := m.RenderFitting(ctx, tenant, *in.Chat)
			if err != nil {
				return nil, err
			}
			rendered = &out
		}
		text, special.SpecialWithin = rendered.Text, rendered.Own
	}
	if err := m.fitsBytes(len(text)); err != nil {
		return nil, err
	}
	special.MaxIDs = exactWithin * (m.Context + 1)
	switch ids, err = e.Encode(ctx, m, tenant, text, special); {
	case err != nil:
		return nil, err
	case len(ids) == 0:
		return nil, ErrNoTokens
	case len(ids) > special.MaxIDs:
		return nil, fmt.Errorf("%w: it has more than %d tokens; this model serves at most %d", batch.ErrTooLong, special.MaxIDs, m.Context)
	}
	return ids, nil
}

// exactWithin: if a prompt is longer than this many contexts, its refusal does not state its exact
// length, and the prompt is not encoded to its end.
const exactWithin = 4

// fitsBytes refuses a text whose tokens cannot fit the context, before it is encoded. The model
// must have a tokenizer.
func (m Model) fitsBytes(n int) error {
	// Twice the longest piece, because white space that special tokens absorb is in no token.
	if most := 2 * (m.Context + 1) * max(m.Tokenizer.LongestPiece(), 4); n > most {
		return fmt.Errorf("%w: it has %d bytes; this model serves at most %d tokens", batch.ErrTooLong, n, m.Context)
	}
	return nil
}

// fitsChat refuses a conversation whose tokens cannot fit the context, before it is rendered.
//
// It must not refuse a conversation that would fit, and a template may write less than it gets. So
// white space around a message, and the assistant's reasoning up to its end mark, do not count. If
// a template leaves out whole messages, which WritesMessages detects, nothing is refused here, and
// the limits of package template apply. Beyond that, fitsBytes allows twice the longest piece for
// each token, while text has about four bytes.
func (m Model) fitsChat(ctx context.Context, chat Chat) error {
	sum := 0
	for _, msg := range chat.Messages {
		sum += leastBytes(msg)
	}
	tmpl, _, _ := m.choose(chat)
	if tmpl == nil || m.Tokenizer == nil { // Render reports it
		return nil
	}
	if err := m.fitsBytes(sum); err != nil && tmpl.WritesMessages(ctx) {
		return err
	}
	return nil
}

// RenderFitting is Render, after it refused a conversation whose tokens cannot fit the context.
func (m Model) RenderFitting(ctx context.Context, tenant string, chat Chat) (template.Prompt, error) {
	if err := m.fitsChat(ctx, chat); err != nil {
		return template.Prompt{}, err
	}
	return m.Render(ctx, tenant, chat)
}

// leastBytes is the least that a template writes of a message, in bytes.
func leastBytes(m template.Message) int {
	const endOfReasoning = "</think>"
	content := m.Content
	if i := strings.LastIndex(content, endOfReasoning); i >= 0 && m.Role == "assistant" {
		content = content[i+len(endOfReasoning):]
	}
	return len(strings.TrimSpace(content))
}
