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
	// largeTexts bounds the large texts that are encoded at once, together: encoding takes up to 28 bytes for each of theirs.
	largeTexts = 4 << 20
)

// Encoder encodes texts, a bounded number at once, by tenant and by size: a text below 64 KiB never waits for a larger one. The
// texts that wait are the caller's to bound. Make it with NewEncoder. Safe for concurrent use.
type Encoder struct{ slots *fairsem.Semaphore }

// NewEncoder returns an encoder that runs at most atOnce small texts and half as many large ones at once; as many as there are
// processors is a good number.
func NewEncoder(atOnce int) *Encoder {
	return &Encoder{fairsem.New(fairsem.Config{Small: atOnce, Large: atOnce / 2, LargeFrom: largeText, LargeBytes: largeTexts})}
}

// Acquire waits for a slot for a text of size bytes of a tenant. The caller calls release, also when it panics.
func (e *Encoder) Acquire(ctx context.Context, tenant string, size int) (release func(), err error) {
	return e.slots.Acquire(ctx, tenant, size)
}

// Encode turns a text of a tenant into token ids when it has a slot.
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

// ids is the prompt of an input of a tenant.
func (e *Encoder) ids(ctx context.Context, m Model, tenant string, in Input) (ids []int32, err error) {
	if len(in.IDs) > 0 {
		return in.IDs, nil
	}
	text, special := in.Text, in.Special()
	if in.Chat != nil {
		if err := m.fitsChat(ctx, *in.Chat); err != nil {
			return nil, err
		}
		rendered, err := m.Render(ctx, tenant, *in.Chat)
		if err != nil {
			return nil, err
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

// exactWithin is how many contexts a prompt may have for its refusal to state its exact number of tokens. A longer one is not
// encoded to its end.
const exactWithin = 4

// fitsBytes refuses a text so long that its tokens cannot fit the context: it is not worth encoding. The model has a tokenizer.
func (m Model) fitsBytes(n int) error {
	// Twice the longest piece: white space that special tokens swallow is in no token.
	if most := 2 * (m.Context + 1) * max(m.Tokenizer.LongestPiece(), 4); n > most {
		return fmt.Errorf("%w: it has %d bytes; this model serves at most %d tokens", batch.ErrTooLong, n, m.Context)
	}
	return nil
}

// fitsChat refuses a conversation before it is rendered, if the tokens of its messages cannot fit the context.
//
// A conversation that would fit must not be refused, and a template may write less than it is given. What templates take away is not
// counted: white space around a message, and the reasoning of the assistant up to its end mark. A template that leaves out whole
// messages is found by WritesMessages; then nothing is refused here, and the limits of package template hold. Beyond that, fitsBytes
// allows twice the longest piece for each token of the context, where text has about four bytes.
func (m Model) fitsChat(ctx context.Context, chat Chat) error {
	sum := 0
	for _, msg := range chat.Messages {
		sum += leastBytes(msg)
	}
	by, _, _ := m.choose(chat)
	if by == nil || m.Tokenizer == nil { // Render says so
		return nil
	}
	if err := m.fitsBytes(sum); err != nil && by.WritesMessages(ctx) {
		return err
	}
	return nil
}

// leastBytes is the fewest bytes of a message that a template writes.
func leastBytes(m template.Message) int {
	const reasoned = "</think>"
	content := m.Content
	if at := strings.LastIndex(content, reasoned); at >= 0 && m.Role == "assistant" {
		content = content[at+len(reasoned):]
	}
	return len(strings.TrimSpace(content))
}
