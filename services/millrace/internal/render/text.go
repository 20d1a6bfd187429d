package render

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"
)

// Bytes is a size with a binary unit and about three digits.
func Bytes(n uint64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	v, unit := float64(n), -1
	for v >= 1024 && unit < 5 {
		v /= 1024
		unit++
	}
	return fmt.Sprintf("%s %ciB", three(v), "KMGTPE"[unit])
}

// Count is a number with a decimal unit and about three digits: 5.6M.
func Count(n uint64) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	v, unit := float64(n), -1
	for v >= 1000 && unit < 5 {
		v /= 1000
		unit++
	}
	return fmt.Sprintf("%s%c", three(v), "kMGTPE"[unit])
}

func three(v float64) string {
	switch {
	case v < 10:
		return fmt.Sprintf("%.2f", v)
	case v < 100:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// Duration is a time with about three digits.
func Duration(d time.Duration) string {
	switch {
	case d < time.Microsecond:
		return d.String()
	case d < time.Millisecond:
		return three(float64(d)/1e3) + " us"
	case d < time.Second:
		return three(float64(d)/1e6) + " ms"
	case d < 2*time.Minute:
		return three(float64(d)/1e9) + " s"
	}
	return d.Round(time.Second).String()
}

// Age is how long ago something was, no finer than people care.
func Age(d time.Duration) string {
	switch {
	case d < 100*time.Millisecond:
		return "just now"
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s ago", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0f s ago", d.Seconds())
	}
	return d.Round(time.Second).String() + " ago"
}

// Rate is a number of tokens a second with about three digits.
func Rate(v float64) string { return three(v) }

// Bar is a bar of width cells, filled by done of total; total 0 is an empty bar.
func Bar(done, total uint64, width int) string {
	filled := 0
	if total > 0 {
		filled = int(float64(min(done, total)) / float64(total) * float64(width))
	}
	return strings.Repeat("#", filled) + strings.Repeat(".", width-filled)
}

// Table aligns rows under a head; cells hold no line ends.
func Table(head []string, rows [][]string) string {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, tableGap, ' ', 0)
	for _, row := range append([][]string{head}, rows...) {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = Line(cell)
			if cell == "" {
				cells[i] = "-"
			}
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	_ = w.Flush() // a strings.Builder takes everything
	lines := strings.Split(out.String(), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ")
	}
	return strings.Join(lines, "\n")
}

// Line returns text on one line: control characters become spaces, invalid UTF-8 becomes U+FFFD.
func Line(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "\ufffd"))
}

// Safe is text for a terminal: control characters other than line end and tab, with which a text could move the cursor
// or rename the window, become U+FFFD.
func Safe(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return utf8.RuneError
		}
		return r
	}, text)
}

// Redraw writes text over its previous text, of which lines lines are on the screen. It cuts text to
// width columns and to height rows (0: no limit), and returns the number of lines on the screen.
func Redraw(text string, lines, width, height int) (out string, now int) {
	var b strings.Builder
	if lines > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", lines)
	}
	b.WriteString("\r")
	rows := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if height > 1 && len(rows) > height-1 {
		rows = rows[:height-1]
	}
	for _, row := range rows {
		if r := []rune(row); width > 0 && len(r) > width {
			row = string(r[:width])
		}
		b.WriteString(row + "\x1b[K\n")
	}
	b.WriteString("\x1b[J")
	return b.String(), len(rows)
}

// Readable returns an enum's name without its prefix, as people write it: "on disk" for MODEL_STATE_ON_DISK.
func Readable(name, prefix string) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, prefix)), "_", " ")
}

// ShortDigest returns the first 12 digits.
func ShortDigest(d string) string { return d[:min(len(d), 12)] }

// List returns names separated by commas, or "none".
func List(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
