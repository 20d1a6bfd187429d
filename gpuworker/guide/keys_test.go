package guide

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The state of an object costs no more for having many optional properties: each was an alternative of
// every derivative, and a mask of a few hundred was too much.
func TestObjectsOfManyPropertiesAreCheap(t *testing.T) {
	var list []string
	for i := range 2000 {
		list = append(list, fmt.Sprintf(`"name%d":{"type":"integer"}`, i))
	}
	g := compile(t, Source{Kind: JSONSchema, Text: `{"type":"object","properties":{` + strings.Join(list, ",") + `}}`})
	s, err := g.Start(nil).AdvanceText(`{"name7":1,"name`)
	require.NoError(t, err)
	w := s.Walk(nil, make([]uint32, g.vocabulary.Words()))
	require.True(t, w.Run(1<<20))
	require.Less(t, w.Steps(), 1<<14)
	require.True(t, accepts(g, `{"name7":1,"name1999":2,"name0000":null}`))
	require.False(t, accepts(g, `{"name7":1,"name6":2}`))
}

// A mask of a choice costs what its texts differ in, not all of them for each byte.
func TestLongChoicesAreCheap(t *testing.T) {
	options, values := make([]string, maxOptions), make([]string, maxOptions)
	for i := range options {
		options[i] = fmt.Sprintf("%c%d%c", 'A'+i%57, i*7919%maxOptions, 'a'+i%26)
		values[i] = `"` + fmt.Sprintf("%c%d", 'a'+i%26, i) + `"`
	}
	for _, source := range []Source{
		{Kind: Choice, Options: options}, {Kind: JSONSchema, Text: `{"enum":[` + strings.Join(values, ",") + `]}`},
	} {
		g := compile(t, source)
		w := g.Start(nil).Walk(nil, make([]uint32, g.vocabulary.Words()))
		w.Run(1 << 30)
		_, err := w.Result()
		require.NoError(t, err)
		require.Less(t, w.Steps(), 1<<18)
	}
	checkTexts(t, Source{Kind: Choice, Options: append(options[2:], "x", "xy")}, append(options[2:], "x", "xy"), []string{"", "A", "xyz"})
	chain := make([]string, 600)
	for i := range chain {
		chain[i] = strings.Repeat("a", i%300+1)
	}
	checkTexts(t, Source{Kind: Choice, Options: chain}, []string{"a", strings.Repeat("a", 300)}, []string{"", strings.Repeat("a", 301)})
}

func TestPropertiesInAnyOrder(t *testing.T) {
	for name, tc := range map[string]struct {
		schema  string
		yes, no []string
	}{
		"required and optional": {
			`{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"boolean"},"c":{"type":"null"}},"required":["b"],"additionalProperties":false}`,
			[]string{`{"b":true}`, `{"c":null,"b":true,"a":1}`, `{"b":true,"a":1}`}, []string{`{}`, `{"a":1}`, `{"b":true,"b":true}`, `{"a":1,"b":true,"a":1}`, `{"b":1}`, `{"b":true,"d":1}`},
		},
		"others between": {
			`{"type":"object","properties":{"a":{"type":"integer"},"ab":{"type":"null"}},"required":["ab","z"],"additionalProperties":{"type":"string"}}`,
			[]string{`{"x":"y","ab":null,"z":"","a":1,"abc":""}`, `{"z":"q","ab":null}`}, []string{`{"x":"y","ab":null}`, `{"a":"y","ab":null,"z":""}`, `{"ab":null,"z":"","ab":null}`},
		},
		"patterns": {
			`{"type":"object","properties":{"a1":{"minimum":5}},"patternProperties":{"^a":{"type":"integer"}},"additionalProperties":false}`,
			[]string{`{"a2":1,"a1":7,"a":0}`}, []string{`{"a2":1,"a1":4}`, `{"b":1}`},
		},
		"numbers of properties": {
			`{"type":"object","properties":{"a":true,"b":true,"c":true},"required":["c"],"additionalProperties":false,"minProperties":2,"maxProperties":2}`,
			[]string{`{"c":1,"a":1}`, `{"b":1,"c":1}`}, []string{`{"c":1}`, `{"c":1,"a":1,"b":1}`, `{"b":1,"a":1}`},
		},
		"at most two, others too": {
			`{"type":"object","properties":{"a":true},"required":["a"],"maxProperties":2}`, []string{`{"x":1,"a":1}`, `{"a":1,"x":1}`}, []string{`{"x":1,"y":1}`, `{"x":1,"y":1,"a":1}`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			checkTexts(t, Source{Kind: JSONSchema, Text: tc.schema, AnyOrder: true}, tc.yes, tc.no)
		})
	}
}

// Sets of properties that came are made as a text reaches them, and an object with more properties than
// that is worth keeps its order.
func TestAnyOrderOfManyProperties(t *testing.T) {
	object := func(n int) (schema string, keys []string) {
		var list []string
		for i := range n {
			list, keys = append(list, fmt.Sprintf(`"name%d":{"type":"integer"}`, i)), append(keys, fmt.Sprintf(`"name%d":%d`, i, i))
		}
		return `{"type":"object","additionalProperties":false,"minProperties":` + fmt.Sprint(n) + `,"properties":{` + strings.Join(list, ",") + `}}`, keys
	}
	schema, keys := object(maxAnyOrder)
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	g := compile(t, Source{Kind: JSONSchema, Text: schema, AnyOrder: true})
	require.True(t, accepts(g, "{"+strings.Join(keys, ",")+"}"))
	require.False(t, accepts(g, "{"+strings.Join(keys[1:], ",")+"}"))
	s, err := g.Start(nil).AdvanceText("{" + strings.Join(keys[:100], ",") + ",\"")
	require.NoError(t, err)
	w := s.Walk(nil, make([]uint32, g.vocabulary.Words()))
	require.True(t, w.Run(1<<20))
	require.Less(t, w.Steps(), 1<<16)
	schema, keys = object(maxAnyOrder + 1)
	g = compile(t, Source{Kind: JSONSchema, Text: schema, AnyOrder: true})
	require.True(t, accepts(g, "{"+strings.Join(keys, ",")+"}"))
	keys[0], keys[1] = keys[1], keys[0]
	require.False(t, accepts(g, "{"+strings.Join(keys, ",")+"}"))
}
