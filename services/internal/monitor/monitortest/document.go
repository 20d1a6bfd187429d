package monitortest

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/internal/doctable"
	"github.com/millrace/millrace/services/internal/monitor"
)

// table is the one under a heading of docs/measures.md.
func table(heading string) doctable.Table {
	return doctable.Table{Page: "measures.md", Heading: heading, Columns: []string{"measure", "kind", "labels", "what it is"}}
}

// Document compares the table under a heading of docs/measures.md with measures; with -update it writes it.
func Document(t *testing.T, heading string, all []monitor.About) {
	t.Helper()
	var rows [][]string
	for _, a := range all {
		rows = append(rows, []string{"`" + a.Name + "`", string(a.Kind), strings.Join(a.Labels, ", "), a.Help})
	}
	table(heading).Compare(t, rows)
}

// Documented are the names in the tables under headings.
func Documented(t *testing.T, headings ...string) (names []string) {
	t.Helper()
	for _, h := range headings {
		for _, row := range table(h).Rows(t) {
			names = append(names, strings.Trim(row[0], "`"))
		}
	}
	return names
}

// Names checks that measures are named as the rules of Prometheus say, once each, and described.
func Names(t *testing.T, prefix string, all []monitor.About) {
	t.Helper()
	shape, seen := regexp.MustCompile(`^`+prefix+`[a-z]+(_[a-z]+)*$`), map[string]bool{}
	for _, a := range all {
		require.Regexp(t, shape, a.Name)
		require.False(t, seen[a.Name], "%s is there twice", a.Name)
		seen[a.Name] = true
		require.Equal(t, a.Kind == monitor.Counter, strings.HasSuffix(a.Name, "_total"), a.Name)
		require.NotRegexp(t, `_(ms|millis|milliseconds|us|ns|minutes|kb|mb|gb|kib|mib|percent)(_|$)`, a.Name, "base units only")
		require.True(t, strings.HasSuffix(a.Help, "."), a.Name)
		require.NotContains(t, a.Help, "|", a.Name)
		require.LessOrEqual(t, len(a.Labels), 4, a.Name)
	}
}
