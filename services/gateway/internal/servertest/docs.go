package servertest

import (
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/internal/doctable"
)

// FieldsOf returns the JSON names of a request's fields, as docs/http.md writes them: in backquotes,
// after a prefix.
func FieldsOf(request any, prefix string) (names []string) {
	for _, f := range reflect.VisibleFields(reflect.TypeOf(request)) {
		if name := f.Tag.Get("json"); name != "" && !f.Anonymous {
			names = append(names, prefix+"`"+name+"`")
		}
	}
	return names
}

// RequireDocumented checks that a table of docs/http.md has each field and no other.
func RequireDocumented(t testing.TB, heading string, fields []string) {
	t.Helper()
	var got []string
	for _, row := range (doctable.Table{Page: "http.md", Heading: heading, Columns: []string{"field", "effect", "meaning"}}).Rows(t) {
		got = append(got, strings.TrimSpace(row[0]))
		require.Contains(t, []string{"honoured", "refused", "skipped"}, row[1], row[0])
	}
	require.ElementsMatch(t, fields, got, heading)
}
