package monitortest

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/monitor"
)

var update = flag.Bool("update", false, "write the tables of docs/measures.md anew")

// head begins every table.
const head = "| measure | kind | labels | what it is |\n| --- | --- | --- | --- |\n"

// Root is the repository's.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..", "..", "..")
}

func page() string { return filepath.Join(Root(), "docs", "measures.md") }

// section is the text of docs/measures.md before, in, and behind the table under a heading.
func section(t *testing.T, heading string) (before, table, behind string) {
	t.Helper()
	raw, err := os.ReadFile(page())
	require.NoError(t, err)
	text := string(raw)
	at := strings.Index(text, "\n## "+heading+"\n")
	require.GreaterOrEqual(t, at, 0, "docs/measures.md has no section %q", heading)
	begin := strings.Index(text[at:], head)
	require.GreaterOrEqual(t, begin, 0, "section %q has no table", heading)
	before, table = text[:at+begin], text[at+begin:]
	if end := strings.Index(table, "\n\n"); end >= 0 {
		table, behind = table[:end+1], table[end+1:]
	}
	return before, table, behind
}

// Document compares the table under a heading of docs/measures.md with measures; with -update it writes it.
func Document(t *testing.T, heading string, all []monitor.About) {
	t.Helper()
	var table strings.Builder
	table.WriteString(head)
	for _, a := range all {
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s |\n", a.Name, a.Kind, strings.Join(a.Labels, ", "), a.Help)
	}
	before, is, behind := section(t, heading)
	if *update {
		require.NoError(t, os.WriteFile(page(), []byte(before+table.String()+behind), 0o600))
		return
	}
	require.Equal(t, table.String(), is, "the same test with -update writes it")
}

// Documented are the names in the tables under headings.
func Documented(t *testing.T, headings ...string) (names []string) {
	t.Helper()
	for _, h := range headings {
		_, table, _ := section(t, h)
		rows := regexp.MustCompile("(?m)^\\| `([a-z_:]+)`").FindAllStringSubmatch(table, -1)
		require.NotEmpty(t, rows, h)
		for _, row := range rows {
			names = append(names, row[1])
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
