package guide

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// call is a text, and then perhaps an object between the tags <c> and </c>.
func call(schema string) Source {
	object := Term{Op: Nested, Source: &Source{Kind: JSONSchema, Text: schema, Lenient: true}, Path: "#/tools/0/parameters"}
	return Source{Kind: Composed, Term: &Term{Op: Sequence, Of: []Term{
		{Op: Free, Without: []string{"<c>"}},
		{Op: Repeat, High: 1, Of: []Term{{Op: Sequence, Of: []Term{{Text: "<c>"}, object, {Text: "</c>"}}}}},
	}}}
}

func TestComposedTextObeysItsParts(t *testing.T) {
	schema := `{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false}`
	checkTexts(t, call(schema),
		[]string{"", "hi", "é <c", "<c", "<<c>{\"a\":1}</c>", "x<c>{\"a\": 1}</c>"},
		[]string{"<c>", "<c>hi", "<c>{\"a\":1}", "<c>{}</c>", "<c>{\"a\":1}</c>more", "\xff", "\xc3"})
	checkTexts(t, Source{Kind: Composed, Term: &Term{Op: Union, Of: []Term{
		{Text: Control + "<a>"}, {Op: Nested, Source: &Source{Kind: Choice, Options: []string{"yes"}}},
		{Op: Nested, Source: &Source{Kind: GBNF, Text: `root ::= "g" root | "h"`}},
	}}}, []string{Control + "<a>", "yes", "gh"}, []string{"<a>", "", "g"})
}

func TestComposedErrorsHaveTheOuterPath(t *testing.T) {
	_, err := Compile(call(`{"properties":{"a":{"type":"x"}}}`), byteTokens())
	var problem *Error
	require.ErrorAs(t, err, &problem)
	require.Equal(t, "#/tools/0/parameters/properties/a/type", problem.Path)
	g := compile(t, call(`{"unevaluatedItems":{"type":"null"}}`))
	require.Equal(t, []string{"#/tools/0/parameters/unevaluatedItems"}, g.Dropped())
}

// A control token has a text that no constraint but a composed one allows.
func TestControlTokensAreNamedOrForbidden(t *testing.T) {
	const control, end = 256, 257
	v := NewVocabulary(258, func(id int32) []byte {
		switch {
		case id == control:
			return []byte(Control + "<a>")
		case id == end || id == 0xff:
			return nil
		}
		return []byte{byte(id)}
	}, 1<<20)
	allows := func(s Source, text string, id int32) bool {
		g, err := Compile(s, v)
		require.NoError(t, err)
		state := g.Start([]int32{end})
		if text != "" {
			state, err = state.AdvanceText(text)
			require.NoError(t, err)
		}
		mask := make([]uint32, v.Words())
		require.NoError(t, state.Mask(mask))
		return mask[id>>5]&(1<<(id&31)) != 0
	}
	named := Source{Kind: Composed, Term: &Term{Op: Sequence, Of: []Term{{Op: Free}, {Text: Control + "<a>"}}}}
	require.True(t, allows(named, "", control))
	require.True(t, allows(named, "text", control))
	require.False(t, allows(named, "\xc3", control), "a character is not complete")
	for _, s := range []Source{
		{Kind: Regex, Text: `(?s:.)*`}, {Kind: Regex, Text: `[^a]*`}, {Kind: GBNF, Text: `root ::= [^a]*`},
		{Kind: GBNF, Text: `root ::= .*`}, {Kind: Composed, Term: &Term{Op: Free}},
	} {
		require.False(t, allows(s, "", control), s.Text)
		require.True(t, allows(s, "", 'b'), s.Text)
	}
	require.False(t, allows(Source{Kind: JSONSchema, Text: `{"type":"string","pattern":"[^a]*"}`}, `"`, control))
	g, err := Compile(Source{Kind: Choice, Options: []string{"x"}}, v)
	require.NoError(t, err)
	require.True(t, g.CanEnd([]int32{control}), "a control token may be a stop token")
}

// A state of free text recurs, so that its mask is found once.
func TestFreeTextHasFewStates(t *testing.T) {
	g := compile(t, call(`{}`))
	seen := []*node{}
	for _, text := range []string{"a", "ab", "<x", "é<<x", "a<c x", "漢 z"} {
		s, err := g.Start(nil).AdvanceText(text)
		require.NoError(t, err)
		if !slices.Contains(seen, s.node) {
			seen = append(seen, s.node)
		}
	}
	require.Len(t, seen, 1)
}
