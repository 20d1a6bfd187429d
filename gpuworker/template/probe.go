package template

import (
	"context"
	"errors"
	"strings"
	"time"
)

// Results of WritesMessages.
const (
	unknown int32 = iota
	writes
	leavesOut
)

// WritesMessages reports whether the template writes the content of every message, so that its
// prompt is at least about as long as its messages. The first call renders two short conversations.
// It returns false for a template that leaves messages out, for example all but the last one, or
// that cannot be tried now.
func (t *Template) WritesMessages(ctx context.Context) bool {
	if found := t.writes.Load(); found != unknown {
		return found == writes
	}
	turns := []Message{
		{Role: "user", Content: "What is first?"}, {Role: "assistant", Content: "The second is first."},
		{Role: "user", Content: "And what is third?"}, {Role: "assistant", Content: "The fourth is third."},
		{Role: "user", Content: "Then the last."},
	}
	found := writes
	now := time.Unix(0, 0).UTC() // for templates that write the date
	for _, messages := range [][]Message{turns, append([]Message{{Role: "system", Content: "Count well."}}, turns...)} {
		out, err := t.Render(ctx, Input{Messages: messages, AddGenerationPrompt: true, Now: now})
		switch {
		case errors.Is(err, ErrTemplate) && len(messages) > len(turns): // it accepts no system message
			continue
		case errors.Is(err, ErrTemplate) || errors.Is(err, ErrLimit):
			found = leavesOut
		case err != nil:
			return false // no result about the template
		}
		for _, m := range messages {
			if !strings.Contains(out.Text, m.Content) {
				found = leavesOut
			}
		}
	}
	t.writes.Store(found)
	return found == writes
}
