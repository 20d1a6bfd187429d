package template_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/template"
)

func TestHostileTemplatesAreBounded(t *testing.T) {
	// Hostile templates are refused in bounded time and memory.
	quick := template.Options{Timeout: time.Second, MaxMemory: 96 << 20, MaxOutput: 1 << 20, MaxSteps: 100_000}
	for name, source := range map[string]string{
		"an enormous string":             `{{ "a" * 100000000000 }}`,
		"a string too large to count":    `{{ "aaaaaaaaaaaaaaaa" * 9223372036854775807 }}`,
		"a string that doubles":          `{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}`,
		"a list that doubles":            `{% set ns = namespace(s=[1,2]) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}`,
		"an enormous range":              `{% for i in range(1000000000000) %}{% endfor %}`,
		"loops in loops":                 `{% for a in range(9000) %}{% for b in range(9000) %}{% for c in range(9000) %}{% endfor %}{% endfor %}{% endfor %}`,
		"loops in loops that print":      `{% for a in range(9000) %}{% for b in range(9000) %}{{ b }}{% endfor %}{% endfor %}`,
		"a macro that calls itself":      `{% macro f(x) %}{{ f(x + 1) }}{% endmacro %}{{ f(0) }}`,
		"two macros that call":           `{% macro f(g) %}{{ g(g) }}{% endmacro %}{{ f(f) }}`,
		"padding":                        `{{ 'a'.center(100000000000) }}{{ 'a' | center(100000000000) }}{{ 'x'.ljust(100000000000) }}`,
		"much output":                    `{% for i in range(9000) %}{{ 'aaaaaaaaaaaaaaaa' * 100 }}{% endfor %}`,
		"a block that grows in silence":  `{% set ns = namespace(s='x' * 1000000) %}{% for i in range(90000) %}{% set t %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = t %}{% endfor %}`,
		"replacement that multiplies":    `{% set s = 'a' * 1000000 %}{{ s.replace('a', s) }}`,
		"joins that multiply":            `{% set s = 'a' * 1000000 %}{{ (s | list) | join(s) }}`,
		"filters in loops":               `{% for i in range(9000) %}{% set x = range(9000) | map('string') | sort | join(',') %}{% endfor %}`,
		"lists that are kept":            `{% set ns = namespace(l=[]) %}{% for i in range(9000) %}{% set ns.l = ns.l + ['a' * 1000000 ~ i] %}{% endfor %}`,
		"a list that holds itself twice": `{% set ns = namespace(l=[]) %}{% for i in range(90) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l == [ns.l[0], ns.l[1]] }}{{ ns.l }}`,
		"lists that are compared":        `{% set a = namespace(l=[1]) %}{% set b = namespace(l=[1]) %}{% for i in range(90) %}{% set a.l = [a.l, a.l] %}{% set b.l = [b.l, b.l] %}{% endfor %}{{ a.l == b.l }}`,
		"a key of keys":                  `{% set a = namespace(l=(1,)) %}{% for i in range(90) %}{% set a.l = (a.l, a.l) %}{% endfor %}{{ {a.l: 1} }}`,
		"JSON that doubles":              `{% set a = namespace(l=[1]) %}{% for i in range(90) %}{% set a.l = [a.l, a.l] %}{% endfor %}{{ a.l | tojson }}`,
		"indented JSON":                  `{{ [1, 2, 3] | tojson(indent=99999999999) }}`,
		"lists in lists":                 `{% set a = namespace(l=[]) %}{% for i in range(90000) %}{% set a.l = [a.l] %}{% endfor %}{{ a.l }}`,
		"a namespace in itself":          `{% set a = namespace() %}{% set a.a = a %}{{ a }}`,
		"a loop that calls itself":       `{% set l = namespace() %}{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}`,
		"powers":                         `{{ 9 ** (9 ** (9 ** 9)) }}`,
		"a power of a power":             `{% set ns = namespace(n=3) %}{% for i in range(90) %}{% set ns.n = ns.n * ns.n %}{% endfor %}{{ ns.n }}`,
		"brackets in brackets":           `{{ ` + strings.Repeat("(", 50_000) + strings.Repeat(")", 50_000) + ` }}`,
		"lists in the source":            `{{ ` + strings.Repeat("[", 50_000) + strings.Repeat("]", 50_000) + ` }}`,
		"blocks in blocks":               strings.Repeat("{% if true %}", 9000) + strings.Repeat("{% endif %}", 9000),
		"a long sum":                     `{{ 1` + strings.Repeat("+1", 90_000) + ` }}`,
		"many filters":                   `{{ 1` + strings.Repeat("|string", 30_000) + ` }}`,
		"many subscripts":                `{{ a` + strings.Repeat("[0]", 50_000) + ` }}`,
		"many conditions":                `{{ ` + strings.Repeat("1 if 0 else ", 20_000) + `1 }}`,
		"many signs":                     `{{ ` + strings.Repeat("-", 200_000) + `1 }}`,
		"many negations":                 `{{ ` + strings.Repeat("not ", 50_000) + `1 }}`,
		"a long number":                  `{{ 1` + strings.Repeat("0", 200_000) + ` }}`,
		"a format with a huge width":     `{{ '%99999999999d' | format(1) }}{{ '{:>99999999999}'.format(1) }}`,
	} {
		t.Run(name, func(t *testing.T) {
			tmpl, err := template.New(source, quick)
			if err == nil {
				defer func() { require.NoError(t, tmpl.Close()) }()
				ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second) // a guard against hanging
				defer cancel()
				var out template.Prompt
				out, err = tmpl.Render(ctx, template.Input{})
				require.NotErrorIs(t, err, context.DeadlineExceeded)
				require.Empty(t, out)
			}
			require.Error(t, err)
			require.True(t, errors.Is(err, template.ErrLimit) || errors.Is(err, template.ErrTemplate), "%v", err)
			require.NotErrorIs(t, err, template.ErrChild)
			require.Less(t, len(err.Error()), 700)
		})
	}
}

func TestTemplatesThatAreWrongSaySo(t *testing.T) {
	for name, tc := range map[string]struct{ source, want string }{
		"its own words":              {`{{ raise_exception('Roles must alternate: ' + messages[0].role) }}`, "Roles must alternate: system"},
		"its own words in a macro":   {`{% macro f() %}{{ raise_exception("no tools") }}{% endmacro %}{% for m in messages %}{% if true %}{{ f() }}{% endif %}{% endfor %}`, "no tools"},
		"an unknown method":          {`{{ 'a'.frobnicate() }}`, "frobnicate"},
		"an unknown function":        {`{{ frobnicate() }}`, "frobnicate"},
		"an unknown filter":          {`{{ 'a' | frobnicate }}`, "frobnicate"},
		"an unknown tag":             {`{% frobnicate %}`, "frobnicate"},
		"a method of nothing":        {`{{ nothing.strip() }}`, "'nothing' is undefined"},
		"the line of the mistake":    {"a\n{% if true %}\n{% for m in messages %}\n{{ 'a'.frobnicate() }}{% endfor %}{% endif %}", "failed: line 4: "},
		"no time for the date":       {`{% if true %}{{ strftime_now('%Y') }}{% endif %}`, "no time"},
		"a division by zero":         {`{{ 1 % 0 }}`, "integer modulo by zero"},
		"a tag without end":          {`{% if true %}a`, "endif"},
		"an expression without end":  {`a {{ 'b`, "string has no end"},
		"brackets without end":       {`{{ ('a' }}`, "')' is expected"},
		"include":                    {`{% include "/etc/passwd" %}`, "include"},
		"import":                     {`{% import "/etc/passwd" as x %}`, "import"},
		"from":                       {`{% from "/etc/passwd" import x %}`, "from"},
		"extends":                    {`{% extends "/etc/passwd" %}`, "extends"},
		"include behind a condition": {`{% if false %}{% include "x" %}{% endif %}`, "include"},
		"chance":                     {`{{ [1, 2] | random }}`, "random"},
		"bytes that are no text":     {"\xff", "UTF-8"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := render(t, tc.source, template.Input{Messages: dialogue})
			require.ErrorIs(t, err, template.ErrTemplate)
			require.ErrorContains(t, err, tc.want)
			require.Less(t, len(err.Error()), 700)
		})
	}
}

func TestLimitsAreNamed(t *testing.T) {
	for name, tc := range map[string]struct {
		source string
		opts   template.Options
		want   string
	}{
		"the size of the template": {strings.Repeat("a", 300<<10), template.Options{}, "307200 bytes"},
		"the size of the output":   {`{% for i in range(100) %}0123456789{% endfor %}`, template.Options{MaxOutput: 999, Timeout: time.Minute}, "999 bytes of output"},
		"the steps of loops":       {`{% for i in range(51) %}{% endfor %}`, template.Options{MaxSteps: 100, Timeout: time.Minute}, "100 steps"},
		"the length of a range":    {`{{ range(101) | length }}`, template.Options{MaxSteps: 100, Timeout: time.Minute}, "100 steps"},
	} {
		t.Run(name, func(t *testing.T) {
			tmpl, err := template.New(tc.source, tc.opts)
			if err == nil {
				defer func() { require.NoError(t, tmpl.Close()) }()
				_, err = tmpl.Render(context.Background(), template.Input{})
			}
			require.ErrorIs(t, err, template.ErrLimit)
			require.ErrorContains(t, err, tc.want)
		})
	}
	for _, opts := range []template.Options{{MaxSteps: -1}, {MaxMemory: 1}, {Timeout: -1}} {
		_, err := template.New("a", opts)
		require.Error(t, err)
	}
}

func TestATemplateServesAgainAfterItWasStopped(t *testing.T) {
	tmpl := parse(t, `{% if messages %}{{ messages[0].content }}{% else %}{% set ns = namespace(l=[]) %}{% for i in range(9000) %}{% set ns.l = ns.l + ['a' * 1000000 ~ i] %}{% endfor %}{% endif %}`, patient)
	for range 2 {
		_, err := tmpl.Render(context.Background(), template.Input{})
		require.ErrorIs(t, err, template.ErrLimit)
		require.ErrorContains(t, err, "memory")
		got, err := tmpl.Render(context.Background(), template.Input{Messages: dialogue})
		require.NoError(t, err)
		require.Equal(t, "Be brief.", got.Text)
	}
}

func TestKilledChildIsReplaced(t *testing.T) {
	// A child that was killed or stopped from outside is replaced.
	for name, signal := range map[string]syscall.Signal{
		"killed": syscall.SIGKILL, "stopped": syscall.SIGSTOP, "ended": syscall.SIGTERM,
	} {
		t.Run(name, func(t *testing.T) {
			tmpl := parse(t, `{{ messages[0].content }}`, patient)
			for _, text := range []string{"first", strings.Repeat("longer than a pipe ", 10_000)} {
				require.NoError(t, tmpl.Signal(signal))
				got, err := tmpl.Render(context.Background(), template.Input{Messages: []template.Message{{Role: "user", Content: text}}})
				require.NoError(t, err)
				require.Equal(t, text, got.Text)
			}
		})
	}
}

func TestACancelledRenderingEndsAtOnce(t *testing.T) {
	slow := template.Options{Timeout: time.Hour, MaxSteps: 1 << 40}
	tmpl := parse(t, `{% if messages %}{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}{% else %}ok{% endif %}`, slow)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := tmpl.Render(ctx, template.Input{Messages: dialogue})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	got, err := tmpl.Render(context.Background(), template.Input{})
	require.NoError(t, err)
	require.Equal(t, "ok", got.Text)
}

func TestAClosedTemplateRefusesAndLeavesNothing(t *testing.T) {
	before := runtime.NumGoroutine()
	tmpl, err := template.New("a", patient)
	require.NoError(t, err)
	require.NoError(t, tmpl.Close())
	require.NoError(t, tmpl.Close())
	_, err = tmpl.Render(context.Background(), template.Input{})
	require.ErrorIs(t, err, template.ErrClosed)
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if runtime.NumGoroutine() <= before { // goroutines that are about to end may do so
			return
		}
	}
	require.Fail(t, "goroutines are left", "%d before, %d now", before, runtime.NumGoroutine())
}

func TestRenderingsAtOnceDoNotMix(t *testing.T) {
	tmpl := parse(t, `{% set ns = namespace(x='') %}{% for m in messages %}{% set ns.x = ns.x ~ m.content %}{% endfor %}{{ ns.x }}`, patient)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			text := strings.Repeat("x", i)
			got, err := tmpl.Render(context.Background(), template.Input{Messages: []template.Message{{Role: "user", Content: text}}})
			if err != nil || got.Text != text {
				t.Errorf("rendering %d gave %q, %v", i, got.Text, err)
			}
		})
	}
	wg.Wait()
}

func TestALongConversationFits(t *testing.T) {
	in := template.Input{Now: noon}
	for range 300 {
		in.Messages = append(in.Messages, template.Message{Role: "user", Content: strings.Repeat("a", 2000)}, template.Message{Role: "assistant", Content: strings.Repeat("é", 1000)})
	}
	for _, family := range families[:4] {
		tmpl := parse(t, family.source, patient)
		got, err := tmpl.Render(context.Background(), in)
		require.NoError(t, err, family.name)
		require.Greater(t, len(got.Text), 1_200_000, family.name)
		require.NoError(t, tmpl.Close())
	}
}
