package doctable

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/internal/repotest"
)

// Table is the first table with Columns under the heading "## Heading" of docs/Page.
type Table struct {
	Page, Heading string
	Columns       []string
}

// Root returns the root of the repository.
func Root() string {
	return repotest.Path("")
}

func (tb Table) path() string { return filepath.Join(Root(), "docs", tb.Page) }

// head returns the first two lines of the table.
func (tb Table) head() string {
	return row(tb.Columns) + row(strings.Split(strings.Repeat("--- ", len(tb.Columns)-1)+"---", " "))
}

func row(cells []string) string { return "| " + strings.Join(cells, " | ") + " |\n" }

// split returns the page before the table, the table, and the page after it.
func (tb Table) split(t testing.TB) (before, table, behind string) {
	t.Helper()
	raw, err := os.ReadFile(tb.path())
	require.NoError(t, err)
	text := string(raw)
	at := strings.Index(text, "\n## "+tb.Heading+"\n")
	require.GreaterOrEqual(t, at, 0, "docs/%s has no section %q", tb.Page, tb.Heading)
	begin := strings.Index(text[at:], tb.head())
	require.GreaterOrEqual(t, begin, 0, "section %q of docs/%s has no table of %v", tb.Heading, tb.Page, tb.Columns)
	before, table = text[:at+begin], text[at+begin:]
	if end := strings.Index(table, "\n\n"); end >= 0 {
		table, behind = table[:end+1], table[end+1:]
	}
	return before, table, behind
}

// Rows returns the cells of the table without its head.
func (tb Table) Rows(t testing.TB) (rows [][]string) {
	t.Helper()
	_, table, _ := tb.split(t)
	for line := range strings.Lines(strings.TrimPrefix(table, tb.head())) {
		rows = append(rows, strings.Split(strings.Trim(line, "| \n"), " | "))
	}
	require.NotEmpty(t, rows, "table of %q in docs/%s", tb.Heading, tb.Page)
	return rows
}

// Compare fails unless the table has exactly these rows in this order. With -update it writes them.
func (tb Table) Compare(t testing.TB, rows [][]string) {
	t.Helper()
	want := tb.head()
	for _, cells := range rows {
		require.Len(t, cells, len(tb.Columns))
		for _, cell := range cells {
			require.NotContains(t, cell, "|", "it would end the cell")
		}
		want += row(cells)
	}
	before, is, behind := tb.split(t)
	if *repotest.Update {
		require.NoError(t, os.WriteFile(tb.path(), []byte(before+want+behind), 0o600))
		return
	}
	require.Equal(t, want, is, "the same test with -update writes it")
}
