package render_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/millrace/internal/render"
)

func TestAgesAreNoFinerThanPeopleCare(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "just now", 43 * time.Microsecond: "just now", 400 * time.Millisecond: "0.4 s ago", 64 * time.Second: "64 s ago",
		10*time.Minute + 400*time.Millisecond: "10m0s ago",
	} {
		require.Equal(t, want, render.Age(d))
	}
}

func TestNumbersHaveAboutThreeDigits(t *testing.T) {
	for n, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 1024: "1.00 KiB", 5648096: "5.39 MiB", 16 << 30: "16.0 GiB", 1 << 63: "8.00 EiB"} {
		require.Equal(t, want, render.Bytes(n))
	}
	for n, want := range map[uint64]string{0: "0", 999: "999", 5250000: "5.25M", 8_030_000_000: "8.03G"} {
		require.Equal(t, want, render.Count(n))
	}
	for d, want := range map[time.Duration]string{
		0: "0s", 12 * time.Nanosecond: "12ns", 1500 * time.Nanosecond: "1.50 us", 12345 * time.Microsecond: "12.3 ms",
		119 * time.Second: "119 s", 3700 * time.Second: "1h1m40s",
	} {
		require.Equal(t, want, render.Duration(d))
	}
	require.Equal(t, "1817", render.Rate(1817.3))
}

func TestBarsFillFromEmptyToFull(t *testing.T) {
	for name, tc := range map[string]struct {
		done, total uint64
		want        string
	}{
		"nothing known":    {5, 0, "...."},
		"nothing done":     {0, 8, "...."},
		"a half":           {4, 8, "##.."},
		"all":              {8, 8, "####"},
		"more than all":    {9, 8, "####"},
		"nearly all":       {7, 8, "###."},
		"very large sizes": {1 << 63, 1 << 63, "####"},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, render.Bar(tc.done, tc.total, 4)) })
	}
}

func TestTablesAlignAndCannotBeBroken(t *testing.T) {
	require.Equal(t, "NAME  SIZE\na     1\nlong  -\nx y   2\n",
		render.Table([]string{"NAME", "SIZE"}, [][]string{{"a", "1"}, {"long", ""}, {"x\ny", "2"}}))
}

func TestUnfriendlyTextIsDisarmed(t *testing.T) {
	require.Equal(t, "a b [31m", render.Line("a\nb\x1b[31m"))
	require.Equal(t, "\ufffd", render.Line("\xff"))
	require.Equal(t, "a\n\tb\ufffd[2Jé", render.Safe("a\n\tb\x1b[2Jé"))
	require.Equal(t, "\ufffd", render.Safe("\u009b"))
}

func TestRedrawWritesOverWhatWasThere(t *testing.T) {
	out, lines := render.Redraw("ab\ncd\n", 0, 0, 0)
	require.Equal(t, "\rab\x1b[K\ncd\x1b[K\n\x1b[J", out)
	require.Equal(t, 2, lines)
	out, lines = render.Redraw("abc\n", lines, 2, 0)
	require.Equal(t, "\x1b[2A\rab\x1b[K\n\x1b[J", out)
	require.Equal(t, 1, lines)
	_, lines = render.Redraw("1\n2\n3\n4\n", lines, 0, 3)
	require.Equal(t, 2, lines, "a screen of 3 rows keeps one for the cursor")
}
