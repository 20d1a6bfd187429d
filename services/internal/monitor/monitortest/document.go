package monitortest

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/internal/doctable"
	"github.com/millrace/millrace/services/internal/monitor"
)

// table returns the table under a heading of the metrics document.
func table(heading string) doctable.Table {
	return doctable.Table{Page: "observability.md", Heading: heading, Columns: []string{"metric", "kind", "labels", "meaning"}}
}

// Document compares the table under a heading with metrics. With -update it writes the table.
func Document(t *testing.T, heading string, all []monitor.Metric) {
	t.Helper()
	var rows [][]string
	for _, a := range all {
		rows = append(rows, []string{"`" + a.Name + "`", string(a.Kind), strings.Join(a.Labels, ", "), a.Help})
	}
	table(heading).Compare(t, rows)
}

// Documented returns the names in the tables under the headings.
func Documented(t *testing.T, headings ...string) (names []string) {
	t.Helper()
	for _, h := range headings {
		for _, row := range table(h).Rows(t) {
			names = append(names, strings.Trim(row[0], "`"))
		}
	}
	return names
}

// Names checks that metrics are named by the rules of Prometheus, unique and described.
func Names(t *testing.T, prefix string, all []monitor.Metric) {
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
