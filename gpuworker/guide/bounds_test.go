package guide

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestChainsOfRulesCompile(t *testing.T) {
	// What holds for the last rule holds for all: it is found in few rounds, or this is above the limit.
	var text strings.Builder
	text.WriteString("root ::= r1\n")
	for i := 1; i < 4000; i++ {
		fmt.Fprintf(&text, "r%d ::= r%d\n", i, i+1)
	}
	text.WriteString(`r4000 ::= "x"`)
	checkTexts(t, Source{Kind: GBNF, Text: text.String()}, []string{"x"}, []string{"", "xx"})
}

func TestCompileBoundsItsWork(t *testing.T) {
	// Each source took seconds, or did not end, before its steps were counted.
	numbers := func(first int) string {
		list := make([]string, 1<<14)
		for i := range list {
			list[i] = fmt.Sprint(2*i + first)
		}
		return `{"enum":[` + strings.Join(list, ",") + `]}`
	}
	for name, tc := range map[string]struct {
		source Source
		want   error
	}{
		"alternatives of anchors": {Source{Kind: Regex, Text: strings.Repeat(`(^|(^))`, 50)}, ErrLimit},
		"two long enums":          {Source{Kind: JSONSchema, Text: `{"allOf":[` + numbers(0) + `,` + numbers(1) + `]}`}, ErrUnsupported},
		"a oneOf of long enums":   {Source{Kind: JSONSchema, Text: `{"oneOf":[` + numbers(0) + `,` + numbers(1) + `]}`}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Compile(tc.source, byteTokens())
			require.ErrorIs(t, err, tc.want)
		})
	}
}

func TestPathsAreBounded(t *testing.T) {
	// Every value below a long key, and every ignored keyword, once had the key in a path of its own: 170 KB of schema became 307 MB.
	const count = 400
	var keywords []string
	for i := range count {
		keywords = append(keywords, fmt.Sprintf(`"%d":{"unevaluatedItems":false}`, i))
	}
	for name, key := range map[string]string{"long": strings.Repeat("k", 100<<10), "escaped": strings.Repeat("/", 1<<10), "wide": strings.Repeat("é", 1<<10)} {
		t.Run(name, func(t *testing.T) {
			text := `{"properties":{"` + key + `":{"properties":{` + strings.Join(keywords, ",") + `}}}}`
			g := compile(t, Source{Kind: JSONSchema, Text: text, Lenient: true})
			require.Len(t, g.Dropped(), 1, "the paths are cut where they are equal")
			require.LessOrEqual(t, len(g.Dropped()[0]), maxPath+len(cut))
			require.True(t, utf8.ValidString(g.Dropped()[0]))
			_, err := Compile(Source{Kind: JSONSchema, Text: text}, byteTokens())
			require.ErrorIs(t, err, ErrUnsupported)
			require.Less(t, len(err.Error()), 3*maxPath)
			composed := &Term{Op: Nested, Path: g.Dropped()[0], Source: &Source{Kind: JSONSchema, Text: text, Lenient: true}}
			g = compile(t, Source{Kind: Composed, Term: composed})
			require.LessOrEqual(t, len(g.Dropped()[0]), maxPath+len(cut))
		})
	}
	g := compile(t, Source{Kind: JSONSchema, Text: `{"properties":{` + strings.Join(keywords, ",") + `}}`, Lenient: true})
	require.Len(t, g.Dropped(), maxDropped+1)
	require.Equal(t, fmt.Sprintf("and %d more", count-maxDropped), g.Dropped()[maxDropped])
	_, err := Compile(Source{Kind: Regex, Text: strings.Repeat("a", 1<<10) + "(?=b)" + strings.Repeat("a", 1<<10)}, byteTokens())
	require.Less(t, len(err.Error()), 3*maxProblem)
}

func TestNamesOfPropertiesAreCounted(t *testing.T) {
	// A trie of names needs about a hundred bytes for each of their characters. It was neither counted nor bounded, and each
	// branch of a union has its own.
	name := strings.Repeat("k", 60<<10)
	g := compile(t, Source{Kind: JSONSchema, Text: `{"properties":{"` + name + `":{}}}`})
	require.Greater(t, g.Bytes(), 100*len(name))
	branches := `{"required":["a"]},{"required":["b"]},{"required":["c"]}`
	_, err := Compile(Source{Kind: JSONSchema, Text: `{"properties":{"` + name + `":{}},"anyOf":[` + branches + `]}`}, byteTokens())
	require.ErrorIs(t, err, ErrLimit)
}
