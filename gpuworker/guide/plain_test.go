package guide

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPlainKindsStayFew(t *testing.T) {
	// Texts of many scripts make every continuation byte a class of its own. The kinds of characters do
	// not multiply, or a mask inside a string would visit a million of them.
	var options []string
	for i := range rune(4096) {
		options = append(options, string(0x4e00+5*i)+string(0x400+i%900)+string(0x1f300+i%700))
	}
	g, err := Compile(Source{Kind: Choice, Options: options}, byteTokens())
	require.NoError(t, err)
	all := 0
	for _, kind := range g.proto.plain {
		for _, reps := range kind {
			all += len(reps)
		}
	}
	require.Less(t, all, 2048)
}
