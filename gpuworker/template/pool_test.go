package template_test

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/template"
)

// endless renders for ever if the first message is large.
const endless = `{% if messages[0].content | length > 60000 %}{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}{% endif %}{{ messages[0].content }}`

func TestSmallChatsDoNotWaitForLargeOnes(t *testing.T) {
	tmpl := parse(t, endless, template.Options{Timeout: time.Hour, MaxSteps: 1 << 40})
	ctx, cancel := context.WithCancel(t.Context())
	large := make(chan error)
	const callers = 3
	for range callers {
		go func() {
			_, err := tmpl.Render(ctx, template.Input{Tenant: "large", Messages: []template.Message{{Role: "user", Content: strings.Repeat("a", 64<<10)}}})
			large <- err
		}()
	}
	require.Eventually(t, func() bool { return tmpl.Children() == 0 }, time.Minute, time.Millisecond, "a large one is rendered")
	for range 3 {
		out, err := tmpl.Render(t.Context(), template.Input{Tenant: "small", Messages: dialogue})
		require.NoError(t, err)
		require.Equal(t, dialogue[0].Content, out.Text)
	}
	cancel()
	for range callers {
		require.ErrorIs(t, <-large, context.Canceled)
	}
}

func TestTemplatesShareSlots(t *testing.T) {
	// While one template renders in every slot, another one with the same slots waits.
	const callers = 4
	slots := template.NewSlots()
	busy := parse(t, endless, template.Options{Timeout: time.Hour, MaxSteps: 1 << 40, Slots: slots})
	other := parse(t, `{{ messages[0].content }}`, template.Options{Slots: slots})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	for range callers {
		go func() {
			_, err := busy.Render(ctx, template.Input{Messages: []template.Message{{Role: "user", Content: strings.Repeat("a", 60001)}}})
			done <- err
		}()
	}
	waiting := callers - min(runtime.GOMAXPROCS(0), callers)
	require.Eventually(t, func() bool { return busy.Children() == 0 && slots.Waiting() == waiting }, time.Minute, time.Millisecond)
	waited := make(chan error)
	go func() {
		_, err := other.Render(t.Context(), template.Input{Messages: dialogue})
		waited <- err
	}()
	require.Eventually(t, func() bool { return slots.Waiting() == waiting+1 }, time.Minute, time.Millisecond)
	cancel()
	for range callers {
		require.ErrorIs(t, <-done, context.Canceled)
	}
	require.NoError(t, <-waited)
}

func TestWritesMessagesFindsTemplatesThatDrop(t *testing.T) {
	const all = `{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}`
	for name, tc := range map[string]struct {
		source string
		want   bool
	}{
		"every message":                   {all, true},
		"every message and the date":      {`{{ strftime_now('%d %b %Y') }}` + all, true},
		"the last message":                {`{{ messages[-1].content }}`, false},
		"no system message":               {`{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('none') }}{% endif %}{{ m.content }}{% endfor %}`, true},
		"system messages are left out":    {`{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}`, false},
		"a template that always fails":    {`{{ raise_exception('never') }}`, false},
		"one that takes a single message": {`{% if messages | length > 1 %}{{ raise_exception('one') }}{% endif %}{{ messages[0].content }}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			tmpl := parse(t, tc.source, patient)
			for range 2 {
				require.Equal(t, tc.want, tmpl.WritesMessages(t.Context()))
			}
		})
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	tmpl := parse(t, all, patient)
	require.False(t, tmpl.WritesMessages(ended), "nothing is known yet")
	require.True(t, tmpl.WritesMessages(t.Context()))
}
