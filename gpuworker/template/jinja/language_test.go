package jinja_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/template/jinja"
)

// golden is what Jinja2 makes of a template: a text, the template's own refusal, or an error of
// another kind.
type golden struct {
	Source string
	Text   *string
	Raised *string
	Error  string
}

// refused are the cases that Jinja2 renders and this package refuses, with words of the refusal.
var refused = map[string]string{
	// Jinja2 makes these undefined where it can evaluate them while it compiles; with variables
	// they are errors there too.
	"{{ [1, 2]['a':] }}": "slice indices must be integers",
	"{{ none[1:] }}":     "'NoneType' object cannot be sliced",
	"{{ {'a': 1}[1:] }}": "'dict' object cannot be sliced",
}

func TestTheLanguageIsThatOfJinja2(t *testing.T) {
	for _, want := range readGolden(t) {
		t.Run(strings.ReplaceAll(want.Source, "/", "÷"), func(t *testing.T) {
			got, err := render(t, want.Source)
			if words, ok := refused[want.Source]; ok {
				require.ErrorContains(t, err, words)
				return
			}
			var fault *jinja.Error
			switch {
			case want.Text != nil:
				require.NoError(t, err)
				require.Equal(t, *want.Text, got)
			case want.Raised != nil:
				require.ErrorAs(t, err, &fault)
				require.Equal(t, jinja.Raised, fault.Kind)
				require.Equal(t, *want.Raised, fault.Text)
			default:
				require.ErrorAs(t, err, &fault, "Jinja2 says %s; got %q", want.Error, got)
				require.Equal(t, jinja.Wrong, fault.Kind)
				if _, reason, _ := strings.Cut(want.Error, ": "); strings.HasPrefix(want.Error, "UndefinedError") || strings.HasPrefix(want.Error, "SecurityError") {
					if !strings.Contains(reason, "inline if-expression") {
						require.Equal(t, reason, fault.Text)
					}
				}
				require.Positive(t, fault.Line)
			}
		})
	}
}

func readGolden(t testing.TB) []golden {
	t.Helper()
	raw, err := os.ReadFile("../testdata/language.json")
	require.NoError(t, err)
	var cases []golden
	require.NoError(t, json.Unmarshal(raw, &cases))
	require.Greater(t, len(cases), 300)
	return cases
}

func render(t testing.TB, source string) (string, error) {
	t.Helper()
	tmpl, err := jinja.Parse(source, jinja.Limits{})
	if err != nil {
		return "", err
	}
	out, err := tmpl.Render(variables(t))
	return out.Text, err
}

// variables are those of variables.json, and a strftime_now like the one that the golden file was
// made with.
func variables(t testing.TB) map[string]jinja.Value {
	t.Helper()
	raw, err := os.ReadFile("../testdata/variables.json")
	require.NoError(t, err)
	in := json.NewDecoder(strings.NewReader(string(raw)))
	in.UseNumber()
	root := readJSON(t, in)
	out := map[string]jinja.Value{
		"strftime_now": jinja.NewFunction("strftime_now", []string{"format"}, func(args []jinja.Value) (jinja.Value, error) {
			return map[jinja.Value]string{"%d %b %Y": "07 Mar 2025", "%Y-%m-%d": "2025-03-07"}[args[0]], nil
		}),
	}
	for _, name := range []string{"messages", "one", "tools", "numbers", "words", "people", "text", "mapping", "half", "huge", "empty", "yes"} {
		v, ok := jinja.Item(root, name)
		require.True(t, ok, name)
		out[name] = v
	}
	return out
}

// readJSON keeps the order of keys.
func readJSON(t testing.TB, in *json.Decoder) jinja.Value {
	t.Helper()
	token, err := in.Token()
	require.NoError(t, err)
	var items []jinja.Value
	switch v := token.(type) {
	case json.Delim:
		for in.More() {
			items = append(items, readJSON(t, in))
		}
		_, err := in.Token()
		require.NoError(t, err)
		if v == '{' {
			return jinja.NewDict(items...)
		}
		return jinja.NewList(items...)
	case json.Number:
		n, err := jinja.Number(v.String())
		require.NoError(t, err)
		return n
	case nil, bool, string:
		return v
	}
	panic(fmt.Sprint(token))
}
