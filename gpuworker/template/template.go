package template

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
)

// Message is one turn of a conversation.
type Message struct {
	Role    string
	Content string
}

// Prompt is a rendered conversation. Own are the ranges of its bytes that the template wrote, ascending and apart: special
// tokens in them are the template's. All other bytes came from the caller.
type Prompt struct {
	Text string
	Own  [][2]int
}

// Input is what a template is rendered from.
type Input struct {
	Messages            []Message
	AddGenerationPrompt bool // end with the beginning of the assistant's turn
	BOS, EOS            string
	Now                 time.Time // for templates that write the date; in its own time zone
}

// Template is one parsed chat template. It is safe for concurrent use; renderings happen one after another.
type Template struct {
	source string
	opts   Options
	lock   chan struct{} // holds one token while child and closed are in use
	child  *child        // nil when the last one was killed
	closed bool
}

// New parses a template. It fails with ErrTemplate, ErrLimit or ErrChild. The caller closes the template.
func New(source string, opts Options) (*Template, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	if len(source) > opts.MaxSource {
		return nil, fmt.Errorf("template has %d bytes, more than %d: %w", len(source), opts.MaxSource, ErrLimit)
	}
	if !utf8.ValidString(source) {
		return nil, fmt.Errorf("%w: it is not UTF-8", ErrTemplate) // the protocol could not carry it
	}
	t := &Template{source: source, opts: opts, lock: make(chan struct{}, 1)}
	if t.child, err = startChild(context.Background(), source, opts); err != nil {
		return nil, err
	}
	return t, nil
}

// Render returns the prompt for a conversation. It fails with ErrTemplate, ErrLimit, ErrChild, ErrClosed or the context's
// error, and the template stays usable after all but ErrClosed.
func (t *Template) Render(ctx context.Context, in Input) (Prompt, error) {
	select {
	case t.lock <- struct{}{}:
	case <-ctx.Done():
		return Prompt{}, ctx.Err()
	}
	defer func() { <-t.lock }()
	if t.closed {
		return Prompt{}, ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return Prompt{}, err
	}
	used := t.child != nil
	out, err := t.render(ctx, in)
	if used && errors.Is(err, ErrChild) && ctx.Err() == nil {
		// It was killed or stopped from outside since it was last used: a new one is as good.
		out, err = t.render(ctx, in)
	}
	if err != nil && errors.Is(err, ErrChild) && ctx.Err() != nil {
		err = ctx.Err()
	}
	return out, err
}

// render asks the child, or a new one if there is none. A child that fails is gone afterwards.
func (t *Template) render(ctx context.Context, in Input) (Prompt, error) {
	if t.child == nil {
		c, err := startChild(ctx, t.source, t.opts)
		if err != nil {
			return Prompt{}, err
		}
		t.child = c
	}
	pieces, err := t.child.ask(ctx, request{Render: newRenderArgs(in)}, t.opts.Timeout)
	if t.child.dead {
		t.child = nil
	}
	return joined(pieces), err
}

// Close ends the child process. A rendering under way is finished first. Closing twice does nothing.
func (t *Template) Close() error {
	t.lock <- struct{}{}
	defer func() { <-t.lock }()
	t.closed = true
	if t.child != nil {
		t.child.kill()
		t.child = nil
	}
	return nil
}
