package template

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestConditionsAreRewrittenOnlyWhereTheyMustBe(t *testing.T) {
	for source, want := range map[string]string{
		"plain { text } {":                         "plain { text } {",
		"{{ a if b else c }}":                      "{{ a if b else c }}",
		"{% for x in y if z %}{% endfor %}":        "{% for x in y if z %}{% endfor %}",
		"{% if (a) %}{{ 'x if y else z' }}":        "{% if (a) %}{{ 'x if y else z' }}",
		"{{ (notif or elsewhere) }}":               "{{ (notif or elsewhere) }}",
		"{# ( #}{{ (a if b else c) }}":             "{# ( #}{{ ( ((b) and [a] or [c])[0]) }}",
		"{{- (a if b) -}}":                         "{{- ( ((b) and [a] or [none])[0]) -}}",
		"{%- set x = a if b else c if d else e %}": "{%- set x = ((b) and [a] or [((d) and [c] or [e])[0]])[0] %}",
		"{{ f(x == 1, k=a if b else c) }}":         "{{ f(x == 1,k= ((b) and [a] or [c])[0]) }}",
	} {
		got, err := nestConditions(source)
		require.NoError(t, err)
		require.Equal(t, strings.Join(strings.Fields(want), ""), strings.Join(strings.Fields(got), ""), source)
	}
}

func TestDeepBracketsAreRefused(t *testing.T) {
	_, err := nestConditions("{{ " + strings.Repeat("(", 5000) + strings.Repeat(")", 5000) + " }}")
	require.ErrorContains(t, err, "nested")
}

func TestABinaryThatCannotHostChildrenIsTold(t *testing.T) {
	hosted.Store(false)
	defer hosted.Store(true)
	_, err := New("a", Options{})
	require.ErrorIs(t, err, ErrChild)
	require.ErrorContains(t, err, "MaybeChild")
}

func FuzzRewritingNeverFailsBadly(f *testing.F) {
	for _, s := range []string{"{{ (a if b else c) }}", "{% set x = 'a", "{{ {'a': [1 if", "{% raw %}{{", "{#", "{{ a if b if else else c }}", "{{ ')' ~ (']' if a) }}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, source string) {
		text, err := nestConditions(source)
		if err == nil && !strings.Contains(source, "if") {
			require.Equal(t, source, text) // nothing to rewrite
		}
	})
}
