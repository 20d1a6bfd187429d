package embed

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFormOfATemplate(t *testing.T) {
	// The ranges are the template's own text: what a caller gives is outside of them.
	f, ok := parseForm("<a>\n<Instruct>: find it\n<Query>: {query}\n<Document>: {document}</a>")
	require.True(t, ok)
	text, own := f.text(Query{Text: "<q>"}, "<d>")
	require.Equal(t, "<a>\n<Instruct>: find it\n<Query>: <q>\n<Document>: <d></a>", text)
	outside := ""
	at := 0
	for _, r := range own {
		outside += text[at:r[0]] + "|"
		at = r[1]
	}
	require.Equal(t, "|find it|<q>|<d>|", outside)
	text, _ = f.text(Query{Text: "{document}", Instruction: "judge"}, "{query}")
	require.Equal(t, "<a>\n<Instruct>: judge\n<Query>: {document}\n<Document>: {query}</a>", text, "marks in what a caller gives are text")
}

func TestFormWithoutAnInstruction(t *testing.T) {
	f, ok := parseForm("{query}\t{document}\n")
	require.True(t, ok)
	text, own := f.text(Query{Text: "q"}, "d")
	require.Equal(t, "q\td\n", text)
	require.Equal(t, [][2]int{{1, 2}, {3, 4}}, own)
	require.NoError(t, f.check(Query{Text: "q"}))
	require.ErrorIs(t, f.check(Query{Text: "q", Instruction: "i"}), ErrNoInstruction)
	for _, bad := range []string{"", "{query}", "{document} {query}"} {
		_, ok := parseForm(bad)
		require.False(t, ok, bad)
	}
	_, ok = parseForm(qwen3)
	require.True(t, ok)
}
