package prompt

import (
	"context"
	"fmt"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/tokenizer"
)

// Encoder encodes texts, a bounded number at once, since each takes many times its bytes while it is encoded. The texts that
// wait are the caller's to bound. Make it with NewEncoder.
type Encoder struct {
	turns chan struct{} // holds one token for each text being encoded
}

// NewEncoder returns an encoder of at most so many texts at once; as many as there are processors is a good number.
func NewEncoder(atOnce int) *Encoder { return &Encoder{turns: make(chan struct{}, atOnce)} }

// Take waits for a turn. The caller gives it back, also when it panics.
func (e *Encoder) Take(ctx context.Context) (giveBack func(), err error) {
	select {
	case e.turns <- struct{}{}:
		return func() { <-e.turns }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Encode turns a text into token ids when it is its turn.
func (e *Encoder) Encode(ctx context.Context, m Model, text string, o tokenizer.EncodeOptions) ([]int32, error) {
	if m.Tokenizer == nil {
		return nil, fmt.Errorf("%w: %q works by token ids", ErrNoTokenizer, m.Name)
	}
	giveBack, err := e.Take(ctx)
	if err != nil {
		return nil, err
	}
	defer giveBack()
	return m.Tokenizer.Encode(text, o), nil
}

// ids is the prompt of an input.
func (e *Encoder) ids(ctx context.Context, m Model, in Input) (ids []int32, err error) {
	if len(in.IDs) > 0 {
		return in.IDs, nil
	}
	text, special := in.Text, in.Special()
	if in.Chat != nil {
		rendered, err := m.Render(ctx, *in.Chat)
		if err != nil {
			return nil, err
		}
		text, special.SpecialWithin = rendered.Text, rendered.Own
	}
	if err := m.fitsBytes(len(text)); err != nil {
		return nil, err
	}
	ids, err = e.Encode(ctx, m, text, special)
	if err == nil && len(ids) == 0 {
		err = ErrNoTokens
	}
	return ids, err
}

// fitsBytes refuses a text so long that its tokens cannot fit the context: it is not worth encoding. The model has a tokenizer.
func (m Model) fitsBytes(n int) error {
	// Twice the longest piece: white space that special tokens swallow is in no token.
	if most := 2 * (m.Context + 1) * max(m.Tokenizer.LongestPiece(), 4); n > most {
		return fmt.Errorf("%w: it has %d bytes; this model serves at most %d tokens", batch.ErrTooLong, n, m.Context)
	}
	return nil
}
