package jinja_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/template/jinja"
)

// foreign are characters that the caller's texts have and neither the random templates nor this
// package write.
const foreign = "⟨⟩¦"

// oneToOne are operations on a text that give a text, with % for a text of either origin.
var oneToOne = []string{
	"%s.upper()", "%s.lower()", "%s.title()", "%s.capitalize()", "%s.swapcase()", "%s.casefold()", "%s.strip()", "%s.lstrip()",
	"%s.rstrip()", "%s.strip('q⟨')", "%s.center(20)", "%s.ljust(20, 'é')", "%s.rjust(20, c[0])", "%s.zfill(20)",
	"%s.removeprefix('q')", "%s.removesuffix(c)", "%s.replace('q', c)", "%s.replace(c[:1], 'q')", "%s.replace('', c, 3)",
	"%s.split() | join('q')", "%s.split('q') | join(c)", "%s.split(c[:1], 1) | join('-')", "%s.rsplit('q', 1)[0]",
	"%s.rsplit(none, 1) | last", "%s.splitlines() | join('q')", "%s.partition('q') | join", "%s.rpartition(c[:1])[2]",
	"'q'.join([%s, c])", "%s.join(['q', c])", "%s.join('qw')", "%s.format(c, 'q')", "('{}q' ~ %s).format(c)",
	"'{:>20}{!r}'.format(%s, c)", "'%%s-%%5s' %% (%s, c)", "(%s ~ '%%s') %% c", "'%%r' %% [%s]", "'%%(a)s' %% {'a': %s}",
	"%s[1:]", "%s[:-1]", "%s[::-1]", "%s[::2]", "%s[0:3]", "(%s ~ 'q')[0]", "(%s ~ 'q')[-1]", "%s * 2", "(2 * %s)",
	"(%s + 'q')", "(c + %s)", "(%s ~ 1 ~ none)", "(%s or 'q')", "(%s if yes else 'q')", "[%s, 'q'] | string", "{'a': %s} | string",
	"(%s, c) | string", "%s | upper", "%s | lower", "%s | title", "%s | capitalize", "%s | trim", "%s | center(20)",
	"%s | indent(2, true)", "%s | indent(c[:1], true)", "%s | replace('q', c)", "%s | reverse", "%s | string", "%s | escape",
	"%s | forceescape", "%s | safe", "(%s | safe ~ 'q') | string", "(('q' | safe) + %s) | string", "%s | tojson",
	"%s | tojson(true)", "[%s, c] | tojson(indent=1)", "{%s: c} | tojson(separators=(c, 'q'))", "%s | list | join('q')",
	"%s | first ~ 'q'", "%s | last ~ 'q'", "%s | default('q')", "%s | format('q')", "[%s, 'q'] | map('upper') | join(c)",
	"[%s, 'q'] | sort | first", "[%s, c] | max", "[%s, 'q'] | min", "[%s, c] | unique | join", "[[%s, c]] | map('last') | join",
	"[%s] | batch(2, 'q') | map('join', c) | join", "{'a': %s}.a", "{'a': %s}['a']", "{%s: 'q'} | first", "[{'a': %s}] | map(attribute='a') | join",
	"dict(a=%s) | dictsort | string", "namespace(a=%s).a", "({'a': %s}.items() | list)[0][1]", "m(%s)", "m('q', %s)", "cycler(%s).next()",
	"[{'a': %s}] | groupby('a') | map(attribute='grouper') | join",
}

func TestOriginCannotBeForgedByChains(t *testing.T) {
	// Random chains of operations over a text of the caller. Its characters never occur in a
	// template writes: each of them must be the caller's in the result. The text must not depend on
	// origins: it is the same if all of it is the template's.
	rng := rand.New(rand.NewPCG(36, 5))
	rendered := 0
	for range 4000 {
		chain := []string{"c", "'q'", "('q' ~ c)", "(c ~ 'q w')"}[rng.IntN(4)]
		for range 1 + rng.IntN(5) {
			chain = "(" + strings.ReplaceAll(fmt.Sprintf(strings.ReplaceAll(oneToOne[rng.IntN(len(oneToOne))], "⟨", "q"), chain), "%%", "%") + ")"
		}
		source := `{% macro m(a, b='w') %}[{{ a }}{% set z %}{{ b }}q{% endset %}{{ z }}]{% endmacro %}{{ ` + chain + ` }}`
		tmpl, err := jinja.Parse(source, jinja.Limits{Text: 1 << 16})
		require.NoError(t, err, source)
		var content strings.Builder
		for range 1 + rng.IntN(6) {
			content.WriteString([]string{"⟨", "¦", "⟩", "¦⟩ ", "q", "ß", " ", "\n", "\"'", "É"}[rng.IntN(10)])
		}
		got, err := tmpl.Render(map[string]jinja.Value{"c": content.String(), "yes": true})
		same, other := tmpl.Render(map[string]jinja.Value{"c": jinja.Own(content.String()), "yes": true})
		require.Equal(t, err == nil, other == nil, "%s of %q: %v, %v", source, content.String(), err, other)
		if err != nil {
			require.Equal(t, err, other)
			continue
		}
		rendered++
		require.Equal(t, same.Text, got.Text, source)
		for _, span := range got.Own {
			require.False(t, strings.ContainsAny(got.Text[span[0]:span[1]], foreign), "%s of %q gave %s", source, content.String(), shown(t, got))
		}
		if same.Text != "" && !strings.Contains(chain, "dict(") && !strings.Contains(chain, "namespace(") {
			require.Equal(t, [][2]int{{0, len(same.Text)}}, same.Own, "%s of own %q gave %s", source, content.String(), shown(t, same))
		}
	}
	require.Greater(t, rendered, 2000)
}
