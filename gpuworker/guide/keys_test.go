package guide

import (
	"fmt"
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
