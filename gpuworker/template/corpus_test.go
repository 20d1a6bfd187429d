package template_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/template"
)

// answer is what Jinja2 makes of a template and a conversation: a prompt, the template's own
// refusal, or another error.
type answer struct {
	Text   *string
	Raised *string
	Error  string
}

// TestFamiliesOfTheFieldRenderAsJinja2Does runs the project's own templates, which write the
// formats of published models.
func TestFamiliesOfTheFieldRenderAsJinja2Does(t *testing.T) {
	compareFolder(t, filepath.Join("testdata", "families"), nil)
}

// TestPublishedTemplatesRenderAsJinja2Does runs those that model repositories publish, which are
// not part of the project.
func TestPublishedTemplatesRenderAsJinja2Does(t *testing.T) {
	root := os.Getenv("MILLRACE_SHARED")
	if root == "" {
		root = filepath.Join("..", "..", "..", "shared")
	}
	folder := filepath.Join(root, "templates")
	if _, err := os.Stat(folder); err != nil {
		t.Skipf("the published templates are not here: set MILLRACE_SHARED to a folder with templates/*.jinja and the .json files "+
			"that testdata/golden.py makes for them (%v)", err)
	}
	compareFolder(t, folder, notSupported)
}

// notSupported are words of the refusals of published templates that this package refuses and
// Jinja2 does not.
var notSupported = map[string]string{}

func compareFolder(t *testing.T, folder string, refusals map[string]string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(folder, "*.jinja"))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".jinja")
		t.Run(name, func(t *testing.T) {
			source, err := os.ReadFile(path)
			require.NoError(t, err)
			var want map[string]answer
			readJSON(t, strings.TrimSuffix(path, ".jinja")+".json", &want)
			compareTemplate(t, string(source), want, refusals[name])
		})
	}
}

func compareTemplate(t *testing.T, source string, want map[string]answer, refusal string) {
	t.Helper()
	tmpl, err := template.New(source, patient)
	if refusal != "" {
		require.ErrorContains(t, err, refusal)
		return
	}
	if err == nil {
		defer func() { require.NoError(t, tmpl.Close()) }()
	}
	var conversations map[string][]template.Message
	readJSON(t, filepath.Join("testdata", "conversations.json"), &conversations)
	seen := 0
	for name, messages := range conversations {
		for _, prompt := range []string{"True", "False"} {
			for _, ends := range [][2]string{{"<s>", "</s>"}, {"", ""}} {
				key := fmt.Sprintf("%s, prompt=%s, bos='%s'", name, prompt, ends[0])
				expected, ok := want[key]
				require.True(t, ok, "no answer for %s", key)
				got, failure := "", err
				if failure == nil {
					var out template.Prompt
					out, failure = tmpl.Render(context.Background(), template.Input{
						Messages: messages, AddGenerationPrompt: prompt == "True", BOS: ends[0], EOS: ends[1], Now: noon,
					})
					got = out.Text
					requireMarkersOwned(t, out, messages)
				}
				expected.compare(t, key, got, failure)
				seen++
			}
		}
	}
	require.Len(t, want, seen)
}

func (want answer) compare(t *testing.T, key, got string, err error) {
	t.Helper()
	switch {
	case want.Text != nil:
		require.NoError(t, err, key)
		require.Equal(t, *want.Text, got, key)
	case want.Raised != nil:
		require.ErrorIs(t, err, template.ErrTemplate, key)
		words := strings.Join(strings.Fields(*want.Raised), " ")
		require.Equal(t, words, strings.TrimPrefix(err.Error(), template.ErrTemplate.Error()+": "), key)
	default:
		require.ErrorIs(t, err, template.ErrTemplate, "%s: Jinja2 says %s, got %q", key, want.Error, got)
		require.NotErrorIs(t, err, template.ErrLimit, key)
	}
}

func readJSON(t *testing.T, path string, out any) {
	t.Helper()
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, out))
}

// markers are how special tokens look in the families' templates.
var markers = regexp.MustCompile(`<\|[^|<>]*\|>|</?[a-z_]+>|\[/?[A-Z_]+\]`)

// requireMarkersOwned requires that each marker of a prompt lies within the template's bytes,
// unless it was in a message.
func requireMarkersOwned(t *testing.T, p template.Prompt, messages []template.Message) {
	t.Helper()
	for _, m := range messages {
		if markers.MatchString(m.Content) || m.Role == "critic" { // an unusual role is text too
			return
		}
	}
	for _, at := range markers.FindAllStringIndex(p.Text, -1) {
		require.True(t, slices.ContainsFunc(p.Own, func(span [2]int) bool { return span[0] <= at[0] && at[1] <= span[1] }),
			"%q at %d of %q is not the template's: %v", p.Text[at[0]:at[1]], at[0], p.Text, p.Own)
	}
}
