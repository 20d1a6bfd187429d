package ratelog_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/ratelog"
)

func TestClipKeepsShortTexts(t *testing.T) {
	for _, text := range []string{"", "stories", strings.Repeat("a", ratelog.MaxText), strings.Repeat("語", ratelog.MaxText/3)} {
		require.Equal(t, text, ratelog.Clip(text))
	}
	require.Equal(t, "a\ufffdb", ratelog.Clip("a\xffb"))
}

func TestClipCutsBetweenCharacters(t *testing.T) {
	for name, text := range map[string]string{
		"one byte a character":    strings.Repeat("a", 16<<20),
		"one byte too many":       strings.Repeat("a", ratelog.MaxText+1),
		"two bytes":               strings.Repeat("é", 1000),
		"two bytes, one byte on":  "a" + strings.Repeat("é", 1000),
		"three bytes":             strings.Repeat("語", 1000),
		"three, one byte on":      "a" + strings.Repeat("語", 1000),
		"three, two bytes on":     "aa" + strings.Repeat("語", 1000),
		"four bytes":              strings.Repeat("😀", 1000),
		"four, one byte on":       "a" + strings.Repeat("😀", 1000),
		"four, two bytes on":      "aa" + strings.Repeat("😀", 1000),
		"four, three bytes on":    "aaa" + strings.Repeat("😀", 1000),
		"256 bytes of characters": strings.Repeat("😀", 64),
	} {
		got := ratelog.Clip(text)
		require.LessOrEqual(t, len(got), ratelog.MaxText, name)
		require.Greater(t, len(got), ratelog.MaxText-utf8.UTFMax-len("…"), name)
		require.NotContains(t, got, "\ufffd", name)
		head, cut := strings.CutSuffix(got, "…")
		require.True(t, cut, name)
		require.True(t, strings.HasPrefix(text, head), name)
	}
}

// TestClipBoundsReplacedBytes checks that replacing bad bytes, which lengthens a text, keeps the
// bound.
func TestClipBoundsReplacedBytes(t *testing.T) {
	for _, n := range []int{90, 200, 255, 256, 1 << 20} {
		for _, unit := range []string{"\xff", "a\xff", "\xffa\xe8\xaa", "\xf0\x9f\x98", "語\xff", "\x80\x80\x80\x80a"} {
			got := ratelog.Clip(strings.Repeat(unit, n/len(unit)+1))
			require.LessOrEqual(t, len(got), ratelog.MaxText, "%d of %q", n, unit)
			require.True(t, utf8.ValidString(got), "%d of %q", n, unit)
		}
	}
}

func FuzzClip(f *testing.F) {
	f.Add("a", 300, "語")
	f.Fuzz(func(t *testing.T, head string, n int, unit string) {
		text := head + strings.Repeat(unit, max(0, min(n, 600)))
		got := ratelog.Clip(text)
		if len(got) > ratelog.MaxText || !utf8.ValidString(got) {
			t.Fatalf("%q is %d bytes", got, len(got))
		}
		if utf8.ValidString(text) && len(text) <= ratelog.MaxText && got != text {
			t.Fatalf("%q became %q", text, got)
		}
	})
}
