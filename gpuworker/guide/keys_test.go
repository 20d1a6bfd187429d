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
