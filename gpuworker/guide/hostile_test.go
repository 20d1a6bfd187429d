package guide

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// hostileSources grow exponentially, or more, when they are written out.
func hostileSources() map[string]Source {
	doubling := func(keyword string) string { // each definition has the one before twice
		var defs strings.Builder
		defs.WriteString(`"d0":{"type":"string","pattern":"^[ab]*a[ab]{9}$"}`)
		for i := 1; i < 40; i++ {
			ref := fmt.Sprintf(`{"$ref":"#/$defs/d%d"}`, i-1)
			fmt.Fprintf(&defs, `,"d%d":{"%s":[%s,{"allOf":[%s,{"minLength":%d}]}]}`, i, keyword, ref, ref, i)
		}
		return `{"$ref":"#/$defs/d39","$defs":{` + defs.String() + `}}`
	}
	lists := strings.Repeat(`{"type":"array","minItems":9,"maxItems":999,"items":`, 20) + "{}" + strings.Repeat("}", 20)
	var properties []string
	for i := range 4000 {
		properties = append(properties, fmt.Sprintf(`"p%d":{"anyOf":[{"type":"string","maxLength":%d},{"type":"object","required":["q%d"]}]}`, i, i, i))
	}
	var chain []string
	for i := range 30 {
		chain = append(chain, fmt.Sprintf(`"k%d":["k%d"]`, i, i+1))
	}
	schema := func(text string) Source { return Source{Kind: JSONSchema, Text: text} }
	return map[string]Source{
		"doubling of anyOf": schema(doubling("anyOf")),
		"doubling of allOf": schema(doubling("allOf")),
		"doubling of oneOf": schema(doubling("oneOf")),
		"nested lists":      schema(lists),
		"many properties":   schema(`{"type":"object","properties":{` + strings.Join(properties, ",") + `}}`),
		"dependencies":      schema(`{"type":"object","dependentRequired":{` + strings.Join(chain, ",") + `}}`),
		"patterns of keys":  schema(`{"type":"object","patternProperties":{"a.{12}b":{},"b.{12}c":{},"c.{12}a":{}}}`),
		"a text of 1 MB":    schema(`{"const":"` + strings.Repeat("x", 1<<20) + `"}`),
		"counts in counts":  {Kind: GBNF, Text: `root ::= ((("a"{1,40} "b"?){1,40} "c"?){1,40} [a-c]{0,40}){1,1}`},
		"ambiguous rules":   {Kind: GBNF, Text: "root ::= a{1,200} \"!\"\na ::= b{1,200}\nb ::= [a-c]{1,200} | \"a\" b \"b\" | \"a\" b \"c\""},
		"an expression":     {Kind: Regex, Text: `(a|b|ab)*(a|ba|bb){1,30}(([ab]{1,5}){1,5}){1,9}c`},
	}
}

// Sources that would take for ever are refused, or compile, and each of their masks takes bounded work, also
// along a text of their own. The memory that they keep is bounded too.
func TestHostileSourcesAreBounded(t *testing.T) {
	for name, source := range hostileSources() {
		t.Run(name, func(t *testing.T) {
			g, err := Compile(source, byteTokens())
			if err != nil {
				require.True(t, errors.Is(err, ErrLimit) || errors.Is(err, ErrUnsupported), err)
				return
			}
			s, mask := g.Start([]int32{256}), make([]uint32, g.vocabulary.Words())
			for range 60 {
				w := s.Walk(nil, mask)
				for !w.Run(1 << 10) {
				}
				require.Less(t, w.Steps(), 2*maxMaskWork*termSteps)
				if _, err := w.Result(); err != nil {
					require.ErrorIs(t, err, ErrWork)
					break
				}
				ids := setBits(mask)
				if ids[0] == 256 {
					break
				}
				s, err = s.Advance(ids[0])
				require.NoError(t, err)
			}
			require.Less(t, g.Bytes(), 96<<20)
		})
	}
}
