package jinja_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/template/jinja"
)

// shown writes a text with what came from the caller between « and ».
func shown(t testing.TB, text jinja.Text) string {
	t.Helper()
	var out strings.Builder
	at := 0
	caller := func(to int) {
		if to > at {
			out.WriteString("«" + text.Text[at:to] + "»")
		}
	}
	for i, span := range text.Own {
		require.Less(t, span[0], span[1])
		require.True(t, i == 0 || span[0] > at, "spans that touch: %v", text.Own)
		caller(span[0])
		out.WriteString(text.Text[span[0]:span[1]])
		at = span[1]
	}
	require.LessOrEqual(t, at, len(text.Text))
	caller(len(text.Text))
	return out.String()
}

// callers are variables from outside: c, a text of mixed case with blanks around; d, one with
// quotes; l, texts; o, a mapping.
func callers() map[string]jinja.Value {
	return map[string]jinja.Value{
		"c": " aB é ", "x": "x", "q": `"<'` + "\n", "empty": "", "n": 7, "many": "1,2,,3", "lines": "a\nb\r\nc",
		"l": jinja.NewList("x", "y", "x"),
		"o": jinja.NewDict("k", "v", "j", jinja.NewList(1, "w", nil)),
		"f": jinja.NewFunction("f", []string{"a"}, func(args []jinja.Value) (jinja.Value, error) { return args[0], nil }),
	}
}

func TestOriginSurvivesEveryOperation(t *testing.T) {
	for source, want := range map[string]string{
		// What is written, joined and repeated.
		`a{{ c }}b`:                        `a« aB é »b`,
		`{{ 'a' + x }}`:                    `a«x»`,
		`{{ x + x ~ 'a' ~ n ~ none }}`:     `«xx»a7None`,
		`{{ x * 3 }}{{ ('a' + x) * 2 }}`:   `«xxx»a«x»a«x»`,
		`{{ 'ab' * 2 }}`:                   `abab`,
		`{{ empty }}a{{ empty + 'b' }}`:    `ab`,
		`{{ x if true else 'a' }}`:         `«x»`,
		`{{ x or 'a' }}{{ empty or 'a' }}`: `«x»a`,
		`{{ x | default('a') }}{{ u | default(x) }}{{ u | default('b') }}{{ u | default }}`: `«xx»b`,
		// Parts.
		`{{ c[1:3] }}{{ ('a' + x + 'b')[1:] }}{{ ('é' + x)[:1] }}`:         `«aBx»bé`,
		`{{ ('a' + x + 'b')[::-1] }}{{ ('a' + x)[1] }}{{ ('a' + x)[-2] }}`: `b«x»a«x»a`,
		`{{ ('ab' + x) | first }}{{ ('ab' + x) | last }}`:                  `a«x»`,
		`{{ ('a' + x + 'b') | reverse }}{{ x | reverse }}`:                 `b«x»a«x»`,
		`{% for ch in 'a' + x + 'b' %}{{ ch }},{% endfor %}`:               `a,«x»,b,`,
		`{{ ('a' + x) | list | join('-') }}`:                               `a-«x»`,
		// Ends.
		`{{ c.strip() }}|{{ c.lstrip() }}|{{ c.rstrip() }}|{{ c | trim }}`:                          `«aB é»|«aB é »|« aB é»|«aB é»`,
		`{{ (' a' + c).strip() }}{{ 'xax'.strip(x) }}`:                                              `a« aB é»a`,
		`{{ ('a' + x).removeprefix('a') }}{{ ('a' + x).removesuffix(x) }}{{ x.removeprefix('b') }}`: `«x»a«x»`,
		// Cuts.
		`{{ many.split(',') | join('+') }}{{ ('a,' + x).split(',') | join }}`:                                     `«1»+«2»++«3»a«x»`,
		`{{ 'a x b'.split(x) | join('|') }}`:                                                                      `a | b`,
		`{{ c.split() | join('-') }}{{ ('a ' + x).split()[0] }}`:                                                  `«aB»-«é»a`,
		`{{ (x + ',a,' + x).rsplit(',', 1) | join(' ') }}`:                                                        `«x»,a «x»`,
		`{{ (x + ' a ' + x).rsplit(none, 1) | join('-') }}`:                                                       `«x» a-«x»`,
		`{{ ('a=' + x).partition('=') | join(' ') }}{{ ('a=' + x).rpartition('=')[2] }}{{ x.partition('=')[0] }}`: `a = «xxx»`,
		`{{ 'axb'.partition(x)[1] }}`:                                                                             `«x»`,
		`{{ c.partition('B') | join('|') }}{{ c.rpartition('B')[1] }}`:                                            `« a»|«B»|« é B»`, // the separator is the caller's where it is found there
		`{{ lines.splitlines() | join('-') }}{{ ('a\n' + x).splitlines(true) | join }}`:                           "«a»-«b»-«c»a\n«x»",
		// Replacements.
		`{{ 'a-b'.replace('-', x) }}{{ c.replace('B', 'b') }}{{ x.replace('x', 'a') }}`: `a«x»b« a»b« é »a`,
		`{{ 'a-b' | replace('-', x) }}{{ ('a-' + x) | replace('-', '+', 1) }}`:          `a«x»ba+«x»`,
		`{{ 'ab'.replace('', x) }}{{ ('a' + x).replace('', '.') }}`:                     `«x»a«x»b«x».a.«x».`,
		`{{ 'a'.replace('b', x) }}{{ ('a' + x).replace('q', 'r') }}`:                    `aa«x»`,
		// Cases.
		`{{ c.upper() }}{{ c | lower }}{{ c | capitalize }}{{ c.title() }}{{ c | title }}{{ c.swapcase() }}{{ c.casefold() }}`: `« AB É  ab é  ab é  Ab É  Ab É  Ab É  ab é »`,
		`{{ ('a' + x + 'bé').upper() }}{{ ('a' + x) | capitalize }}{{ ('a ' + x).title() }}`:                                   `A«X»BÉA«x»A «X»`,
		`{{ ('ß' + x).upper() }}{{ 'ß'.upper() }}`:                                                                             `«SSX»SS`, // not as many characters: all of it is the caller's
		// Widths.
		`{{ x.ljust(3) }}|{{ x.rjust(3, '-') }}|{{ 'a'.center(3, x) }}|{{ x | center(3) }}|{{ x.zfill(3) }}`: `«x»  |--«x»|«x»a«x»| «x» |00«x»`,
		`{{ ('-' + x).zfill(4) }}`:                        `-00«x»`,
		`{{ lines | indent(2) }}{{ 'a\nb' | indent(2) }}`: "«a\n»  «b\n»  «c»a\n  b",
		`{{ 'a\nb' | indent(x, true) }}`:                  "«x»a\n«x»b",
		`{{ 'a b' | wordcount }}{{ c | length }}`:         `26`,
		// Formats.
		`{{ '%s-%5s|%-3s|%.1s' % (x, x, 'a', c) }}`:                                        `«x»-    «x»|a  |« »`,
		`{{ x % () }}{{ (x + '%s') % 'a' }}{{ '%d %05.1f%%' % (n, 1.5) }}`:                 `«xx»a7 001.5%`,
		`{{ '%(k)s' % o }}{{ '%r' % q }}{{ '%s' | format(x) }}{{ '%(a)s' | format(a=x) }}`: "«v»'«\"<\\'\\n»'«xx»",
		`{{ '{}-{a:>3}{{'.format(x, a=x) }}{{ '{0!r:.^5}'.format(x) }}`:                    `«x»-  «x»{.'«x»'.`,
		`{{ (x + '{}').format('a') }}{{ (x + '{:->3}').format('a') }}`:                     `«x»a«x--»a`,
		`{{ '{.k}{[j][1]}'.format(o, o) }}`:                                                `«vw»`,
		// What prints values.
		`{{ l }}{{ o }}`: `['«x»', '«y»', '«x»']{'«k»': '«v»', '«j»': [1, '«w»', None]}`,
		`{{ (x, ) }}{{ x | string }}{{ [1.5, true, none] | string }}`:            `('«x»',)«x»[1.5, True, None]`,
		`{{ o.items() }}{{ namespace(a=x) }}`:                                    `dict_items([('«k»', '«v»'), ('«j»', [1, '«w»', None])])<Namespace {'«a»': '«x»'}>`,
		`{{ q | tojson }}{{ o | tojson }}{{ 'é"' | tojson(true) }}`:              `"«\"<'\n»"{"«k»": "«v»", "«j»": [1, "«w»", null]}"\u00e9\""`,
		`{{ ('a"' + q) | tojson }}{{ ('é' + c) | tojson(true) }}`:                `"a\"«\"<'\n»""\u00e9« aB \u00e9 »"`,
		`{{ {'a': x} | tojson(indent=1) }}{{ l | tojson(separators=(x, ':')) }}`: "{\n \"a\": \"«x»\"\n}[\"«x»\"«x»\"«y»\"«x»\"«x»\"]",
		// Marks of safety.
		`{{ q | escape }}{{ ('<' + q) | e }}{{ q | safe }}{{ ('<' | safe) + q }}`: "«&#34;&lt;&#39;\n»&lt;«&#34;&lt;&#39;\n\"<'\n»<«&#34;&lt;&#39;\n»",
		`{{ (c | safe).upper() }}{{ (c | safe)[1:2] }}{{ (x | safe) * 2 }}`:       `« AB É axx»`,
		// Lists and mappings.
		`{{ l | join(', ') }}{{ l | join(x) }}{{ ', '.join(l) }}{{ x.join(['a', 'b']) }}`:                                             `«x», «y», «xxxyxxx», «y», «x»a«x»b`,
		`{{ l[0] }}{{ l | first }}{{ l | last }}{{ l | unique | join }}{{ l | sort | join }}{{ l | reverse | join }}`:                 `«xxxxyxxyxyx»`,
		`{{ l | map('upper') | join('-') }}{{ l | select('equalto', 'x') | join('+') }}{{ l | reject('equalto', 'x') | join }}`:       `«X»-«Y»-«Xx»+«xy»`,
		`{{ [{'a': x}] | map(attribute='a') | join }}{{ [{'a': x}] | selectattr('a', 'equalto', 'x') | map(attribute='a') | first }}`: `«xx»`,
		`{{ o.k }}{{ o['k'] }}{{ o.get('k') }}{{ o.get('z', 'a') }}{{ o.j[1] }}`:                                                      `«vvv»a«w»`,
		`{% for k, v in o.items() %}{{ k }}={{ v if v is string }},{% endfor %}`:                                                      `«k»=«v»,«j»=,`,
		`{% for k in o %}{{ k }}{% endfor %}{{ o.keys() | first }}{{ o | dictsort | map('first') | join }}`:                           `«kjkjk»`,
		`{{ {x: 'a'}['x'] }}{{ dict(a=x).a }}{{ (l + ['a']) | join }}`:                                                                `a«xxyx»a`,
		`{{ [x, 'a'] | max }}{{ [x, 'a'] | min }}{{ [['a', x]] | map('last') | join }}`:                                               `«x»a«x»`,
		`{{ [x, 'a', 'b'] | batch(2) | map('join') | join('/') }}{{ [x] | slice(2, 'a') | map('join') | join('/') }}`:                 `«x»a/b«x»/a`,
		`{% for g in [{'a': x, 'b': 'z'}] | groupby('a') %}{{ g.grouper }}{{ g.list[0].b }}{% endfor %}`:                              `«x»z`,
		// Blocks and calls.
		`{% set a %}a{{ x }}{% endset %}{{ a }}{% set b | upper %}b{{ x }}{% endset %}{{ b }}`:                                                       `a«x»B«X»`,
		`{% filter upper %}a{{ x }}{% endfilter %}`:                                                                                                  `A«X»`,
		`{% macro m(a, b='d') %}[{{ a }}{{ b }}{{ caller() if caller }}]{% endmacro %}{{ m(x) }}{{ m('a', x) }}{% call m(x) %}c{{ x }}{% endcall %}`: `[«x»d][a«x»][«x»dc«x»]`,
		`{% macro m() %}{{ varargs[0] }}{{ kwargs.a }}{% endmacro %}{{ m(x, a=x) }}{{ m.name }}`:                                                     `«xx»m`,
		`{% set ns = namespace(a='a') %}{% set ns.a = ns.a + x %}{{ ns.a }}`:                                                                         `a«x»`,
		`{% with a = x %}{{ a }}{% endwith %}{{ cycler(x, 'a').next() }}{% set j = joiner(x) %}{{ j() }}{{ j() }}`:                                   `«xxx»`,
		`{% for a in [[x]] recursive %}{{ loop(a) if a is not string else a }}{{ loop.cycle(x, 'b') }}{% endfor %}`:                                  `«xxx»`,
		// Functions of the caller of the package.
		`{{ f('a') }}{{ f(x) }}{{ f(n) }}{{ f() }}`: `a«x»7None`,
		// Looking at text does not depend on where it came from, and what is found out about it is
		// the template's.
		`{{ x == 'x' }}{{ 'x' in l }}{{ x in 'axb' }}{{ {'x': 1}[x] }}{{ c.startswith(' a') }}{{ c.find('B') }}{{ x is string }}`: `TrueTrueTrue1True2True`,
		`{{ x < 'y' }}{{ c.count('a') }}{{ x.isalpha() }}{{ '12' | int }}{{ x | length }}`:                                        `True1True121`,
	} {
		t.Run(strings.ReplaceAll(source, "/", "÷"), func(t *testing.T) {
			tmpl, err := jinja.Parse(source, jinja.Limits{})
			require.NoError(t, err)
			text, err := tmpl.Render(callers())
			require.NoError(t, err)
			require.Equal(t, want, shown(t, text))
		})
	}
}
