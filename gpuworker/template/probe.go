package template

import (
	"context"
	"errors"
	"strings"
	"time"
)

// What WritesMessages found.
const (
	unknown int32 = iota
	writes
	leavesOut
)

// WritesMessages reports whether the template writes the content of every message of a conversation, so that its prompt is about as
// long as its messages at least. It renders two short conversations when it is first asked. A template that leaves messages out,
// for example all but the last one, or that cannot be tried now, gives false.
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
		case errors.Is(err, ErrTemplate) && len(messages) > len(turns): // it takes no system message at all
			continue
		case errors.Is(err, ErrTemplate) || errors.Is(err, ErrLimit):
			found = leavesOut
		case err != nil:
			return false // this says nothing of the template
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
