package metrics

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the table of docs/measures.md anew")

var page = filepath.Join("..", "..", "..", "..", "docs", "measures.md")

// tableMark is where the table of the page begins; it is the end of the page.
const tableMark = "| measure | kind | labels | what it is |\n| --- | --- | --- | --- |\n"

// everything is every measure of ours, by name.
func everything() []about {
	all := append(readings(), newTold().abouts...)
	slices.SortFunc(all, func(a, b about) int { return strings.Compare(a.name, b.name) })
	return all
}

func TestTheDocumentNamesEveryMeasure(t *testing.T) {
	var table strings.Builder
	table.WriteString(tableMark)
	for _, a := range everything() {
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s |\n", a.name, a.kind, strings.Join(a.labels, ", "), a.help)
	}
	raw, err := os.ReadFile(page)
	require.NoError(t, err)
	before, has, ok := strings.Cut(string(raw), tableMark)
	require.True(t, ok, "the page has no table")
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(before+table.String()), 0o600))
		return
	}
	require.Equal(t, table.String(), tableMark+has, "go test ./services/gpuworker/internal/metrics -run Document -update writes it")
}

func TestNamesFollowTheRules(t *testing.T) {
	shape := regexp.MustCompile(`^millrace_[a-z]+(_[a-z]+)*$`)
	seen := map[string]bool{}
	for _, a := range everything() {
		require.Regexp(t, shape, a.name)
		require.False(t, seen[a.name], "%s is there twice", a.name)
		seen[a.name] = true
		require.Equal(t, a.kind == counter, strings.HasSuffix(a.name, "_total"), a.name)
		require.True(t, strings.HasSuffix(a.help, "."), a.name)
		require.NotContains(t, a.help, "|", a.name)
		require.LessOrEqual(t, len(a.labels), 4, a.name)
	}
	for _, rows := range [][]about{aboutsOf(ofModel), aboutsOf(ofWorker), aboutsOf(ofCounts)} {
		for i, a := range rows[1:] {
			if a.name == rows[i].name {
				require.Equal(t, rows[i], a, "series of one measure say the same of it")
			}
		}
	}
}

func aboutsOf[T any](rows []reading[T]) (all []about) {
	for _, r := range rows {
		all = append(all, r.about())
	}
	return all
}
