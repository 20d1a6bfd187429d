package jinja_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/template/jinja"
)

// FuzzTemplatesStayWithinTheirLimits feeds any source to lexer, parser and evaluator. A second
// rendering gives the same.
func FuzzTemplatesStayWithinTheirLimits(f *testing.F) {
	for _, c := range readGolden(f) {
		f.Add(c.Source)
	}
	paths, err := filepath.Glob("../testdata/families/*.jinja")
	require.NoError(f, err)
	require.NotEmpty(f, paths)
	for _, path := range paths {
		source, err := os.ReadFile(path)
		require.NoError(f, err)
		f.Add(string(source))
	}
	f.Add("{{ '\xe4'.capitalize() }}")
	given := variables(f)
	limits := jinja.Limits{Text: 4096, Steps: 2000, Depth: 300}
	f.Fuzz(func(t *testing.T, source string) {
		tmpl, err := jinja.Parse(source, limits)
		if err != nil {
			requireFault(t, err)
			return
		}
		text, err := tmpl.Render(given)
		if err != nil {
			requireFault(t, err)
		}
		require.LessOrEqual(t, len(text.Text), limits.Text)
		again, other := tmpl.Render(given)
		require.Equal(t, text, again)
		require.Equal(t, err, other)
	})
}

func requireFault(t *testing.T, err error) {
	t.Helper()
	var fault *jinja.Error
	require.ErrorAs(t, err, &fault)
	require.GreaterOrEqual(t, fault.Line, 0)
}
