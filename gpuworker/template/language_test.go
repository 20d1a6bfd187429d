package template_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/template"
)

func TestTemplatesMayUseTheLanguageOfTheField(t *testing.T) {
	for name, tc := range map[string]struct{ source, want string }{
		"filters bind before operators":     {`{{ 'a' + ' b ' | trim + 'c' }}`, "abc"},
		"a condition in parentheses":        {`{{ 'x' + ('a' if false else 'c') ~ 1 }}`, "xc1"},
		"a condition without else":          {`{{ 'x' ~ ('a' if false) ~ 'y' }}`, "xy"},
		"a chain of conditions":             {`{{ 'a' if false else 'b' if false else 'c' }}`, "c"},
		"a chain of conditions in set":      {`{% set x = 'a' if false else 'b' if 1 == 1 else 'c' %}{{ x }}`, "b"},
		"a chain in parentheses":            {`{{ ('a' if false else ('b' if false else 'd' if true else 'c')) }}`, "d"},
		"a condition as an argument":        {`{{ 'a-b'.replace('-' if true else '+', '*' if false else ' if ') }}`, "a if b"},
		"a condition as a keyword argument": {`{% macro f(k) %}<{{ k }}>{% endmacro %}{{ f(k='a' if false else 'b') }}`, "<b>"},
		"a condition in a list and a dict":  {`{{ ['a' if true else 'b', 'c'] | join }}{{ {'k': 'v' if false else 'w'}['k'] }}`, "acw"},
		"only one branch is evaluated":      {`{{ ('a' if true else raise_exception('no')) }}`, "a"},
		"a falsy branch is kept":            {`[{{ ('' if true else 'b') }}]`, "[]"},
		"roles that alternate":              {`{% for m in messages[1:] %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}bad{% endif %}{% endfor %}ok`, "ok"},
		"a reversed list":                   {`{% for m in messages[::-1] %}{{ m.role[0] }}{% endfor %}`, "uaus"},
		"a namespace":                       {`{% set ns = namespace(n=0, last=none) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{{ ns.n }}{{ ns.last }}`, "43"},
		"string methods":                    {`{{ ' x '.strip() }}{{ 'xxa'.lstrip('x') }}{{ 'a\n'.rstrip('\n') }}{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith(('x', 'bc')) }}{{ 'abc'.replace('b', '') }}{{ 'a'.upper() }}{{ 'A'.lower() }}{{ 'a b'.title() }}`, "xaaTrueTrueacAaA B"},
		"split and its parts":               {`{{ messages[2].content.split('</think>')[-1].lstrip('\n') }}|{{ 'a b  c'.split() | join(',') }}|{{ 'a,b,c'.split(',', 1)[1] }}|{{ 'a,b,c'.rsplit(',', 1)[0] }}`, "Hello.|a,b,c|b,c|a,b"},
		"dictionaries in their order":       {`{% for k, v in {'z': 1, 'a': 2}.items() %}{{ k }}{{ v }}{% endfor %}{{ {'z': 1}.get('y', 'd') }}{{ messages[0].keys() | join }}`, "z1a2drolecontent"},
		"tests":                             {`{{ messages is iterable }} {{ messages[0] is mapping }} {{ 'a' is string }} {{ nothing is defined }} {{ none is none }} {{ 3 is odd }} {{ 'role' in messages[0] }} {{ 'h' not in 'xyz' }}`, "True True True False True True True True"},
		"selectattr and map":                {`{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ messages | map(attribute='role') | join('-') }}`, "2system-user-assistant-user"},
		"loop controls":                     {`{% for x in range(9) %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}`, "023"},
		"a loop with a filter and an else":  {`{% for m in messages if m.role == 'tool' %}x{% else %}none{% endfor %}{% for x in range(5, 0, -2) %}{{ x }}{{ ',' if not loop.last }}{% endfor %}`, "none5,3,1"},
		"macros":                            {`{% macro f(x, y='d') %}[{{ x }}{{ y }}]{% endmacro %}{{ f('a') }}{{ f('b', y='c') }}`, "[ad][bc]"},
		"tojson as Python writes it":        {`{{ {'b': 1.0, 'a': ["<é'\"\n>", none, true]} | tojson }}`, `{"b": 1.0, "a": ["<é'\"\n>", null, true]}`},
		"tojson in ASCII":                   {`{{ 'é🙂' | tojson(ensure_ascii=true) }}`, `"\u00e9\ud83d\ude42"`},
		"tojson of a message":               {`{{ messages[0] | tojson }}`, `{"role": "system", "content": "Be brief."}`},
		"tojson with indent":                {`{{ {'a': [1, 2], 'b': {}} | tojson(indent=2) }}`, "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": {}\n}"},
		"reversed by filter":                {`{% for m in messages | reverse %}{{ m.role[0] }}{% endfor %}{{ 'ab' | reverse }}`, "uausba"},
		"pairs by filter":                   {`{% for k, v in {'b': 1, 'a': 2} | items %}{{ k }}{{ v }}{% endfor %}{% for k, v in {'b': 1, 'a': 2} | dictsort %}{{ k }}{{ v }}{% endfor %}`, "b1a2a2b1"},
		"sequences":                         {`{{ 'a' is sequence }}{{ messages is sequence }}{{ 1 is sequence }}{{ 'éc'.index('c') }}{{ 'a b c'.count(' ') }}{{ 'abc'.find('x') }}{{ 'aba'.rfind('a') }}`, "TrueTrueFalse12-12"},
		"the marks of training":             {`{% generation %}a{% endgeneration %}`, "a"},
		"trimmed blocks":                    {"  {% if true %}\nx\n  {% endif %}\n  {# note #}\ny\n", "x\ny"},
		"white space control":               {"a \n {%- if true -%} \n b \n {%- endif %}\n\n c", "ab\n c"},
		"a raw block":                       {`{% raw %}{{ x if y }}{% endraw %}`, "{{ x if y }}"},
		"braces and quotes in strings":      {`{{ '}} {% (' ~ "it's" }}`, "}} {% (it's"},
		"the date":                          {`{{ strftime_now('%d %b %Y, %-d %H:%M') }}`, "07 Mar 2025, 7 12:04"},
		"what is not defined is empty":      {`[{{ nothing }}{{ messages[0].nothing }}]`, "[]"},
		"defaults":                          {`{{ nothing | default('d') }}{% if not add_generation_prompt is defined %}x{% endif %}{{ eos_token }}`, "d</s>"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := render(t, tc.source, template.Input{Messages: dialogue, AddGenerationPrompt: true, BOS: "<s>", EOS: "</s>", Now: noon})
			require.NoError(t, err)
			require.Equal(t, tc.want, got)
		})
	}
}

func TestTheTimeIsWrittenAsAsked(t *testing.T) {
	for format, want := range map[string]string{
		"%Y-%m-%dT%H:%M:%S": "2025-03-07T12:04:05", "%A %B %j %I%p": "Friday March 066 12PM", "%%%y%e%a": "%25 7Fri",
		"%u%w %s": "55 1741349045", "%F %T %Z%z": "2025-03-07 12:04:05 UTC+0000", "%-m/%-d": "3/7", "%f": "000000",
	} {
		got, err := render(t, `{{ strftime_now('`+format+`') }}`, template.Input{Now: noon})
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}
