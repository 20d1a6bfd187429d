package template_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/template"
)

func TestMain(m *testing.M) {
	template.MaybeChild()
	os.Exit(m.Run())
}

// patient are the limits of tests in which time does not matter: a busy machine must not fail them.
var patient = template.Options{Timeout: 60 * time.Second}

func parse(t testing.TB, source string, opts template.Options) *template.Template {
	t.Helper()
	tmpl, err := template.New(source, opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tmpl.Close()) })
	return tmpl
}

var (
	noon = time.Date(2025, 3, 7, 12, 4, 5, 0, time.UTC)

	dialogue = []template.Message{
		{Role: "system", Content: "Be brief."},
		{Role: "user", Content: " Hi! "},
		{Role: "assistant", Content: "<think>\nhm\n</think>\n\nHello."},
		{Role: "user", Content: "Bye <&>\n"},
	}
)

func render(t testing.TB, source string, in template.Input) (string, error) {
	t.Helper()
	tmpl, err := template.New(source, patient)
	if err != nil {
		return "", err
	}
	defer func() { require.NoError(t, tmpl.Close()) }()
	out, err := tmpl.Render(context.Background(), in)
	return out.Text, err
}
