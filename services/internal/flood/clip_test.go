package flood_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/flood"
)

func TestClipKeepsShortTexts(t *testing.T) {
	for _, text := range []string{"", "stories", strings.Repeat("a", flood.MaxText), strings.Repeat("語", flood.MaxText/3)} {
		require.Equal(t, text, flood.Clip(text))
	}
	require.Equal(t, "a\ufffdb", flood.Clip("a\xffb"))
}

func TestClipCutsBetweenCharacters(t *testing.T) {
	for name, text := range map[string]string{
		"one byte a character":    strings.Repeat("a", 16<<20),
		"one byte too many":       strings.Repeat("a", flood.MaxText+1),
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
		got := flood.Clip(text)
		require.LessOrEqual(t, len(got), flood.MaxText, name)
		require.Greater(t, len(got), flood.MaxText-utf8.UTFMax-len("…"), name)
		require.NotContains(t, got, "\ufffd", name)
		head, cut := strings.CutSuffix(got, "…")
		require.True(t, cut, name)
		require.True(t, strings.HasPrefix(text, head), name)
	}
}

// Replacing a bad byte makes a text longer, also one that was short enough.
func TestClipBoundsReplacedBytes(t *testing.T) {
	for _, n := range []int{90, 200, 255, 256, 1 << 20} {
		for _, unit := range []string{"\xff", "a\xff", "\xffa\xe8\xaa", "\xf0\x9f\x98", "語\xff", "\x80\x80\x80\x80a"} {
			got := flood.Clip(strings.Repeat(unit, n/len(unit)+1))
			require.LessOrEqual(t, len(got), flood.MaxText, "%d of %q", n, unit)
			require.True(t, utf8.ValidString(got), "%d of %q", n, unit)
		}
	}
}

func FuzzClip(f *testing.F) {
	f.Add("a", 300, "語")
	f.Fuzz(func(t *testing.T, head string, n int, unit string) {
		text := head + strings.Repeat(unit, max(0, min(n, 600)))
		got := flood.Clip(text)
		if len(got) > flood.MaxText || !utf8.ValidString(got) {
			t.Fatalf("%q is %d bytes", got, len(got))
		}
		if utf8.ValidString(text) && len(text) <= flood.MaxText && got != text {
			t.Fatalf("%q became %q", text, got)
		}
	})
}
