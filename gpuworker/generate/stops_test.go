package generate

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// cut is the naive implementation: the whole text at once, every end position in order.
func cut(text string, stops []string, include bool) (show, matched string) {
	for end := 1; end <= len(text); end++ {
		for _, s := range stops {
			if strings.HasSuffix(text[:end], s) && len(s) > len(matched) {
				matched = s
			}
		}
		if matched != "" {
			if include {
				return text[:end], matched
			}
			return text[:end-len(matched)], matched
		}
	}
	return text, ""
}

func TestStopStringsAreFoundHoweverTheTextIsSplit(t *testing.T) {
	found := 0
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 3))
		word := func(most int) string {
			b := make([]byte, 1+rng.IntN(most))
			for i := range b {
				b[i] = "ab\n"[rng.IntN(3)]
			}
			return string(b)
		}
		text, include := word(60), rng.IntN(2) == 0
		stops := []string{word(5) + "b", word(6), word(7)}[rng.IntN(2):]
		wantShow, wantMatch := cut(text, stops, include)

		m := stopMatcher{stops: stops, include: include}
		show, matched := "", ""
		for rest := text; rest != "" && matched == ""; {
			n := 1 + rng.IntN(min(len(rest), 5))
			var part string
			part, matched = m.push(rest[:n])
			show += part
			rest = rest[n:]
		}
		if matched == "" {
			show += m.pass("")
		} else {
			found++
		}
		require.Equal(t, wantMatch, matched, "seed %d: %q in %q", seed, stops, text)
		require.Equal(t, wantShow, show, "seed %d: %q in %q", seed, stops, text)
	}
	require.NotZero(t, found)
}

func TestNothingIsHeldThatCannotBecomeAStop(t *testing.T) {
	m := stopMatcher{stops: []string{"<end>"}}
	for _, step := range []struct{ in, show string }{{"a<", "a"}, {"e", ""}, {"x", "<ex"}, {"<en", ""}, {"<", "<en"}} {
		show, matched := m.push(step.in)
		require.Empty(t, matched)
		require.Equal(t, step.show, show, "after %q", step.in)
	}
}
