package template_test

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/template"
)

func TestVariablesAreValuesOfTheTemplate(t *testing.T) {
	tmpl := parse(t, `{{ v }}|{{ v is integer }}|{% if messages %}{{ messages[0].content }}{% endif %}`, patient)
	for name, tc := range map[string]struct {
		value any
		want  string
	}{
		"null":                {nil, "None|False|"},
		"a truth value":       {true, "True|False|"},
		"a whole number":      {float64(-3), "-3|True|"},
		"2^53":                {float64(1 << 53), "9007199254740992|True|"},
		"beyond 2^53":         {float64(1 << 54), "1.8014398509481984e+16|False|"},
		"a fraction":          {0.1, "0.1|False|"},
		"a negative zero":     {math.Copysign(0, -1), "0|True|"},
		"a text":              {"x", "x|False|"},
		"a list":              {[]any{1.0, "x", []any{}}, "[1, 'x', []]|False|"},
		"a mapping, in order": {map[string]any{"b": 1.0, "a": map[string]any{}}, "{'a': {}, 'b': 1}|False|"},
	} {
		t.Run(name, func(t *testing.T) {
			in := template.Input{Variables: map[string]any{"v": tc.value, "messages": "shadow", "bos_token": "shadow"}}
			got, err := tmpl.Render(context.Background(), in)
			require.NoError(t, err)
			require.Equal(t, tc.want, got.Text)
		})
	}
	got, err := tmpl.Render(context.Background(), template.Input{})
	require.NoError(t, err)
	require.Equal(t, "|False|", got.Text, "one that is not given is undefined")
}

func TestTextInVariablesIsTheCallers(t *testing.T) {
	tmpl := parse(t, `<{{ v | tojson }}>{{ v.a }}{{ v | first }}`, patient)
	got, err := tmpl.Render(context.Background(), template.Input{Variables: map[string]any{"v": map[string]any{"a": "x"}}})
	require.NoError(t, err)
	require.Equal(t, template.Prompt{Text: `<{"a": "x"}>xa`, Own: [][2]int{{0, 3}, {4, 8}, {9, 12}}}, got)
}

func TestNamesOfVariables(t *testing.T) {
	for _, name := range []string{"enable_thinking", "_x", "A1", "reasoning_effort", "content"} {
		require.Empty(t, template.NameProblem(name), name)
	}
	for _, name := range []string{"", "1a", "a b", "é", "a.b", "messages", "add_generation_prompt", "bos_token", "eos_token", "tools",
		"documents", "strftime_now", "raise_exception", "range", "namespace", "dict", "cycler", "joiner", "lipsum", "loop", "true", "None", "if"} {
		require.NotEmpty(t, template.NameProblem(name), name)
	}
}

func TestALazyTemplateStartsWhenItIsUsed(t *testing.T) {
	tmpl := parse(t, `{{ messages[0].content }}`, template.Options{Lazy: true, Timeout: patient.Timeout})
	require.Zero(t, tmpl.Children())
	got, err := tmpl.Render(context.Background(), template.Input{Messages: []template.Message{{Role: "user", Content: "x"}}})
	require.NoError(t, err)
	require.Equal(t, template.Prompt{Text: "x"}, got)
	require.Equal(t, 1, tmpl.Children())
	_, err = template.New(`{{ 1 + }}`, template.Options{Lazy: true})
	require.ErrorIs(t, err, template.ErrTemplate)
}
