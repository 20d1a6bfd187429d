package tools

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/guide"
)

// A text cannot begin with what the parser takes for reasoning or a call, unless the grammar makes it one.
func TestTextsDoNotBeginLikeReasoningOrCalls(t *testing.T) {
	const call = `{"name": "now", "arguments": {}}`
	llama := strings.Replace(call, "arguments", "parameters", 1)
	for text, tc := range map[string]struct {
		format  string
		opening Opening
		want    []Part // nil: refused
	}{
		"<think>a<tool_call>\n" + call + "\n</tool_call>":       {format: "hermes"},
		" <think>a<tool_call>\n" + call + "\n</tool_call>":      {format: "hermes"},
		"<think>a<tool_call></think>b":                          {format: "hermes", want: []Part{part(Reasoning, "a<tool_call>"), part(Content, "b")}},
		"<thin<tool_call>\n" + call + "\n</tool_call>":          {format: "hermes", want: []Part{part(Content, "<thin"), calling(0, "now", "{}")}},
		`<|python_tag|>{"name": "other", "parameters": [`:       {format: "llama3_json"},
		strings.Repeat(" ", 100) + llama:                        {format: "llama3_json"},
		strings.Repeat(" ", 100) + `a{"name": "`:                {format: "llama3_json", want: []Part{part(Content, strings.Repeat(" ", 100)+`a{"name": "`)}},
		"<|python_tag|>" + llama:                                {format: "llama3_json", want: []Part{calling(0, "now", "{}")}},
		llama + " ":                                             {format: "llama3_json, thinking", opening: Opened},
		"a</think>" + llama:                                     {format: "llama3_json, thinking", opening: Opened, want: []Part{part(Reasoning, "a"), calling(0, "now", "{}")}},
		"<think>a</think>\n" + llama:                            {format: "llama3_json, thinking", want: []Part{part(Reasoning, "a"), calling(0, "now", "{}")}},
		`<think>a</think>{"name": "other"`:                      {format: "llama3_json, thinking"},
		"a" + strings.Repeat(" ", 100) + "<tool_call>\n" + call: {format: "hermes"},
	} {
		t.Run(text, func(t *testing.T) {
			name, _, thinks := strings.Cut(tc.format, ",")
			f, answer := Detect(templates[name]), Answer{Tools: testTools, Opening: tc.opening}
			if thinks {
				f.Open, f.Close = "<think>", "</think>"
			}
			source, err := f.Constraint(noMark, answer)
			require.NoError(t, err)
			g, err := guide.Compile(*source, vocabulary(noMark))
			require.NoError(t, err)
			require.Equal(t, tc.want != nil, accepts(g, text))
			whole := parse(f.Parser(noMark, answer), text, len(text))
			require.Equal(t, whole, parse(f.Parser(noMark, answer), text, 1))
			if tc.want != nil {
				require.Equal(t, tc.want, whole)
			}
		})
	}
}

// A nest of objects without required members is as large as its schema, and not exponentially larger.
func TestNestedObjectsAreShared(t *testing.T) {
	var names []string
	for i := range 10 {
		names = append(names, fmt.Sprintf(`"a%d":{"type":"boolean"}`, i))
	}
	schema := "{}"
	for range 8 {
		schema = `{"type":"object","properties":{` + strings.Join(names, ",") + `,"z":` + schema + `}}`
	}
	f := Detect(templates["gemma4"])
	source, err := f.Constraint(everyMark, Answer{Tools: []Tool{{Name: "f", Parameters: schema}}})
	require.NoError(t, err)
	seen := map[*guide.Source]bool{}
	var terms func(t *guide.Term) int
	terms = func(t *guide.Term) int {
		n := 1
		for i := range t.Of {
			n += terms(&t.Of[i])
		}
		if s := t.Source; s != nil && s.Term != nil && !seen[s] {
			seen[s] = true
			n += terms(s.Term)
		}
		return n
	}
	require.Less(t, terms(source.Term), 50*8*11)
	g, err := guide.Compile(*source, vocabulary(everyMark))
	require.NoError(t, err)
	require.True(t, accepts(g, spell(everyMark, "«<|tool_call>»call:f{a3:true,z:{a0:false,z:{}}}«<tool_call|>»")))
	require.False(t, accepts(g, spell(everyMark, "«<|tool_call>»call:f{a3:true,a1:true}«<tool_call|>»")))
}

// Keywords that a notation cannot honour are listed, and refused if the tool is strict.
func TestKeywordsThatNotationsIgnore(t *testing.T) {
	const path = "#/tools/0/parameters"
	for schema, want := range map[string]map[string][]string{
		`{"properties":{"a":{"type":"string","pattern":"a","title":"A"}}}`:                                        {"qwen3_coder": {"/properties/a/pattern"}, "gemma4": {"/properties/a/pattern"}},
		`{"properties":{"a":{"type":"array","items":{"minLength":1},"maxItems":3}}}`:                              {"gemma4": {"/properties/a/maxItems", "/properties/a/items/minLength"}},
		`{"properties":{"a":{"type":"integer","minimum":1}},"required":["a"]}`:                                    {},
		`{"properties":{"a":{"type":"integer"}},"required":["b"]}`:                                                {"qwen3_coder": {"/required"}, "gemma4": {"/required"}},
		`{"additionalProperties":{"type":"integer"}}`:                                                             {"qwen3_coder": {"/additionalProperties"}, "gemma4": {"/additionalProperties"}},
		`{"anyOf":[{"required":["a"]}],"properties":{"a":{"const":1}}}`:                                           {"qwen3_coder": {"/anyOf"}, "gemma4": {"/anyOf"}},
		`{"properties":{"a":{"$ref":"#"}}}`:                                                                       {"gemma4": {"/properties/a/$ref"}},
		`{"$ref":"#/$defs/b","$defs":{"b":{"properties":{"a":{"type":"integer"}},"additionalProperties":false}}}`: {},
	} {
		for _, format := range []string{"qwen3_coder", "gemma4"} {
			t.Run(format+" "+schema, func(t *testing.T) {
				f := Detect(templates[format])
				constraint := func(strict bool) (*guide.Source, error) {
					return f.Constraint(everyMark, Answer{Tools: []Tool{{Name: "f", Parameters: schema, Strict: strict}}})
				}
				source, err := constraint(false)
				require.NoError(t, err)
				g, err := guide.Compile(*source, vocabulary(everyMark))
				require.NoError(t, err)
				var paths []string
				for _, p := range want[format] {
					paths = append(paths, path+p)
				}
				require.ElementsMatch(t, paths, g.Dropped())
				if _, err = constraint(true); want[format] != nil {
					require.ErrorIs(t, err, ErrFormat)
					require.ErrorContains(t, err, path+want[format][0])
				} else if !strings.Contains(schema, `"$ref":"#"`) { // may be a text: qwen3_coder refuses it for that
					require.NoError(t, err)
				}
			})
		}
	}
	f := Detect(templates["qwen3_coder"])
	source, err := f.Constraint(noMark, Answer{Tools: []Tool{{Name: "f", Parameters: `{"$ref":"#/$defs/b","$defs":{"b":{"properties":{"a":{"type":"integer"}},"required":["a"]}}}`}}, Choice: Choice{Mode: Required}, Opening: Closed})
	require.NoError(t, err)
	g, err := guide.Compile(*source, vocabulary(noMark))
	require.NoError(t, err)
	require.True(t, accepts(g, "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"))
	require.False(t, accepts(g, "<tool_call>\n<function=f>\n</function>\n</tool_call>"))
}

// An answer that must be calls has no content, also if its length cuts it off in a mark.
func TestRequiredCallsHaveNoContent(t *testing.T) {
	for name, template := range templates {
		for _, text := range []string{"\n<too", "[TOO", "<|python_", "<|chan", "\n\n"} {
			for _, opening := range []Opening{Neutral, Closed} {
				f := Detect(template)
				p := f.Parser(noMark, Answer{Tools: testTools, Opening: opening, Choice: Choice{Mode: Required}})
				for _, part := range parse(p, text, 1) {
					require.NotEqual(t, Content, part.Kind, "%s: %q", name, text)
				}
			}
		}
	}
}

// Without a grammar gpt-oss may leave out the header of its answer, whose text was lost.
func TestTextsWithoutAHeaderAreContent(t *testing.T) {
	for _, l := range []Lexicon{everyMark, noMark} {
		for text, want := range map[string][]Part{
			"Hello.": {part(Content, "Hello.")},
			" tom":   {part(Content, " tom")},
			"to":     {part(Content, "to")},
			"Hello«<|end|>»«<|start|>»assistant«<|channel|>»analysis«<|message|>»Hm.": {part(Content, "Hello"), part(Reasoning, "Hm.")},
			" to=functions.f«<|channel|>»commentary«<|message|>»{}":                   {calling(0, "f", "{}")},
			"«<|channel|>»analysis«<|message|>»Hm.":                                   {part(Reasoning, "Hm.")},
		} {
			for _, most := range []int{1, 100} {
				f := Detect(templates["harmony"])
				require.Equal(t, want, parse(f.Parser(l, Answer{}), spell(l, text), most), text)
			}
		}
	}
}

// In qwen3_coder the schema of an argument stands alone, so a $ref to another part of the whole would name another thing, or none.
func TestRefsToTheWholeSchemaAreNotMistaken(t *testing.T) {
	for _, schema := range []string{
		`{"properties":{"x":{"type":"object","properties":{"y":{"$ref":"#/properties/y"}},"required":["y"]},"y":{"type":"integer"}}}`,
		`{"properties":{"x":{"type":"array","items":{"$ref":"#/$defs/a"}}},"$defs":{"a":{"type":"object","properties":{"b":{"$ref":"#"}}}}}`,
	} {
		f := Detect(templates["qwen3_coder"])
		answer := Answer{Tools: []Tool{{Name: "f", Parameters: schema}}, Choice: Choice{Mode: Required}, Opening: Closed}
		source, err := f.Constraint(noMark, answer)
		require.NoError(t, err)
		g, err := guide.Compile(*source, vocabulary(noMark))
		require.NoError(t, err)
		const text = "<tool_call>\n<function=f>\n<parameter=x>\n{\"y\": 1}\n</parameter>\n</function>\n</tool_call>"
		require.True(t, accepts(g, text))
		require.Equal(t, []Part{calling(0, "f", `{"x": {"y": 1}}`)}, parse(f.Parser(noMark, answer), text, 3))
		answer.Tools[0].Strict = true
		_, err = f.Constraint(noMark, answer)
		require.ErrorIs(t, err, ErrFormat)
	}
}
