package render

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// tableGap is the space between two columns of a table.
const tableGap = 2

// Fit is Table within width columns (0: no limit). It leaves columns out, in the order of drop, until the rest fits, and returns the
// heads of those. If the rest does not fit either, lines are cut and end in "...".
func Fit(head []string, rows [][]string, width int, drop ...string) (table string, hidden []string) {
	head, rows = slices.Clone(head), cloneRows(rows)
	for _, name := range drop {
		at := slices.Index(head, name)
		if width <= 0 || Width(head, rows) <= width {
			break
		}
		if at < 0 {
			continue
		}
		hidden = append(hidden, name)
		head = slices.Delete(head, at, at+1)
		for i := range rows {
			rows[i] = slices.Delete(rows[i], at, at+1)
		}
	}
	return Cut(Table(head, rows), width), hidden
}

// Stack is a table within width columns (0: no limit) as several tables below one another: each begins with the first column and has as
// many of the others as fit.
func Stack(head []string, rows [][]string, width int) string {
	var tables []string
	for begin := 1; begin < len(head); {
		end := begin + 1
		for end < len(head) && (width <= 0 || Width(pick(head, begin, end+1), pickRows(rows, begin, end+1)) <= width) {
			end++
		}
		tables = append(tables, Cut(Table(pick(head, begin, end), pickRows(rows, begin, end)), width))
		begin = end
	}
	return strings.Join(tables, "\n")
}

// pick returns the first cell and those in [begin, end).
func pick(row []string, begin, end int) []string {
	return append([]string{row[0]}, row[begin:end]...)
}

func pickRows(rows [][]string, begin, end int) [][]string {
	picked := make([][]string, len(rows))
	for i, row := range rows {
		picked[i] = pick(row, begin, end)
	}
	return picked
}

func cloneRows(rows [][]string) [][]string {
	all := make([][]string, len(rows))
	for i, row := range rows {
		all[i] = slices.Clone(row)
	}
	return all
}

// Width is how many columns a table takes.
func Width(head []string, rows [][]string) int {
	sum := 0
	for i, name := range head {
		widest := utf8.RuneCountInString(name)
		for _, row := range rows {
			widest = max(widest, utf8.RuneCountInString(Line(row[i])))
		}
		sum += widest + tableGap
	}
	return sum - tableGap
}

// Cut is a text whose lines end in "..." where they are longer than width columns (0: no limit).
func Cut(text string, width int) string {
	if width <= len("...") {
		return text
	}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if r := []rune(line); len(r) > width {
			lines[i] = string(r[:width-len("...")]) + "..."
		}
	}
	return strings.Join(lines, "\n")
}
