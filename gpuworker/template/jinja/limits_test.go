package jinja_test

import (
	"runtime/debug"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/template/jinja"
)

func TestEveryLimitEndsATemplateByItself(t *testing.T) {
	defer debug.SetMaxStack(debug.SetMaxStack(64 << 20)) // limit of the child process
	doubled := func(list string) string {
		return `{% set ns = namespace(l=` + list + `) %}{% for i in range(90) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}`
	}
	for name, source := range map[string]string{
		"bytes of output":           `{% for i in range(90000) %}{{ 'a' * 1000 }}{% endfor %}`,
		"bytes of a text":           `{% set x = 'a' * 99999999 %}`,
		"bytes beyond counting":     `{{ 'ab' * 9223372036854775807 }}`,
		"bytes of a joined text":    `{{ (['a' * 1000000] * 100) | join | length }}`,
		"bytes of a replacement":    `{{ ('a' * 1000000).replace('a', 'b' * 1000) | length }}`,
		"bytes of a capture":        `{% set x %}{% for i in range(90000) %}{{ 'a' * 1000 }}{% endfor %}{% endset %}`,
		"bytes of a macro":          `{% macro f() %}{% for i in range(90000) %}{{ 'a' * 1000 }}{% endfor %}{% endmacro %}{% set x = f() %}`,
		"bytes of padding":          `{{ 'a'.ljust(99999999) | length }}`,
		"bytes of a format":         `{{ '%99999999d' % 1 }}`,
		"bytes of a width":          `{{ '%*d' % (99999999, 1) }}`,
		"bytes of a format method":  `{{ '{:>99999999}'.format(1) }}`,
		"bytes of JSON":             doubled(`[1]`) + `{{ ns.l | tojson }}`,
		"bytes of a list's text":    doubled(`[1]`) + `{{ ns.l }}`,
		"rounds":                    `{% for a in range(9000) %}{% for b in range(9000) %}{% endfor %}{% endfor %}`,
		"rounds that are filtered":  `{% for a in range(9000) %}{% for b in range(900) if false %}{% endfor %}{% endfor %}`,
		"items of a list":           `{{ [1] * 9999999 }}`,
		"items beyond counting":     `{{ [1, 2] * 9223372036854775807 }}`,
		"items of a range":          `{% for i in range(1000000000) %}{% endfor %}`,
		"items of ranges":           `{% for i in range(0, 9223372036854775807, 1) %}{% endfor %}`,
		"items of a split":          `{{ (' a' * 5000000).split() | length }}`,
		"items of characters":       `{{ ('ab' * 5000000) | list | length }}`,
		"items compared":            doubled(`[1]`) + `{% set a = ns.l %}` + doubled(`[1]`) + `{{ a == ns.l }}`,
		"items ordered":             doubled(`[1]`) + `{% set a = ns.l %}` + doubled(`[1]`) + `{{ a < ns.l }}`,
		"calls":                     `{% macro f() %}{% endmacro %}{% for i in range(90000) %}{{ f() }}{{ f() }}{{ f() }}{{ f() }}{{ f() }}{{ f() }}{{ f() }}{{ f() }}{{ f() }}{{ f() }}{{ f() }}{% endfor %}`,
		"calls within calls":        `{% macro f(x) %}{{ f(x + 1) }}{% endmacro %}{{ f(0) }}`,
		"macros that pass on":       `{% macro f(g) %}{{ g(g) }}{% endmacro %}{{ f(f) }}`,
		"callers of callers":        `{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{{ f() }}`,
		"defaults that call":        `{% macro f(a=f()) %}{% endmacro %}{{ f() }}`,
		"loops within loops":        `{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}`,
		"lists within lists":        `{% set ns = namespace(l=[]) %}{% for i in range(90000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}`,
		"lists within lists, equal": `{% set a = namespace(l=[]) %}{% set b = namespace(l=[]) %}{% for i in range(90000) %}{% set a.l = [a.l] %}{% set b.l = [b.l] %}{% endfor %}{{ a.l == b.l }}`,
		"tuples as keys":            `{% set a = namespace(l=()) %}{% for i in range(90000) %}{% set a.l = (a.l,) %}{% endfor %}{{ {a.l: 1} }}`,
		"a namespace in itself":     `{% set a = namespace() %}{% set a.a = a %}{{ a }}`,
		"filters of filters":        `{% set ns = namespace(x=[1]) %}{% for i in range(90000) %}{% set ns.x = ns.x | map('string') %}{% endfor %}{{ ns.x | list }}`,
		"powers":                    `{{ 9 ** (9 ** (9 ** 9)) }}`,
		"products":                  `{% set ns = namespace(n=3) %}{% for i in range(90) %}{% set ns.n = ns.n * ns.n %}{% endfor %}`,
		"brackets":                  `{{ ` + strings.Repeat("(", 5000) + `1` + strings.Repeat(")", 5000) + ` }}`,
		"blocks":                    strings.Repeat("{% if true %}", 5000) + strings.Repeat("{% endif %}", 5000),
		"a sum":                     `{{ 1` + strings.Repeat("+1", 5000) + ` }}`,
		"signs":                     `{{ ` + strings.Repeat("-", 5000) + `1 }}`,
		"conditions":                `{{ ` + strings.Repeat("1 if 0 else ", 5000) + `1 }}`,
		"subscripts":                `{{ a` + strings.Repeat("[0]", 5000) + ` }}`,
	} {
		t.Run(name, func(t *testing.T) {
			text, err := render(t, source)
			var fault *jinja.Error
			require.ErrorAs(t, err, &fault)
			require.Equal(t, jinja.Exceeded, fault.Kind, "%v", err)
			require.Equal(t, 1, fault.Line)
			require.Empty(t, text)
		})
	}
}

func TestErrorsNameTheirLine(t *testing.T) {
	for name, tc := range map[string]struct {
		source string
		line   int
	}{
		"an expression":    {"a\n{{ 1 }}\n{{ missing.x }}", 3},
		"within blocks":    {"{% if true %}\n{% for x in [1] %}\n\n{{ 'a' + x }}\n{% endfor %}\n{% endif %}", 4},
		"within a macro":   {"{% macro f() %}\n{{ missing.x }}\n{% endmacro %}\n\n{{ f() }}", 2},
		"after a macro":    {"{% macro f() %}\na\n{% endmacro %}\n\n{{ f() | nofilter }}", 5},
		"a set":            {"\n{% set a, b = 1 %}", 2},
		"a loop":           {"\n\n{% for x in 5 %}{% endfor %}", 3},
		"a string of two":  {"{{ 'a\nb' }}\n{{ 1 / 0 }}", 3},
		"raw text":         {"{% raw %}\n\n{% endraw %}\n{{ 1 / 0 }}", 4},
		"a comment":        {"{# \n\n #}\n{{ 1 / 0 }}", 4},
		"white space gone": {"a\n\n\n{%- if true -%}\n\n{{ 1 / 0 }}{% endif %}", 6},
		"a syntax error":   {"\n\n{{ 1 + }}", 3},
		"an unknown tag":   {"\n{% frobnicate %}", 2},
		"a call's block":   {"{% macro f() %}{{ caller() }}{% endmacro %}\n{% call f() %}\n{{ 1 / 0 }}\n{% endcall %}", 3},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := render(t, tc.source)
			var fault *jinja.Error
			require.ErrorAs(t, err, &fault)
			require.Equal(t, tc.line, fault.Line, "%v", err)
		})
	}
}
