package guide

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/internal/repotest"
)

// suiteFailures is the file of the schemas of the suite that are refused, and of the valid values that
// are, with the reasons. What passes must be deleted from it, which the flag -update does, so that the list
// only shrinks.
const suiteFailures = "testdata/suite/failures.txt"

// suiteGroup is a schema of the suite and its values.
type suiteGroup struct {
	Description string
	Schema      json.RawMessage
	Tests       []struct {
		Description string
		Data        json.RawMessage
		Valid       bool
	}
}

// The JSON Schema test suite, draft 2020-12: no invalid value is accepted, and schemas and valid values are
// refused only where that is listed.
func TestSchemaSuite(t *testing.T) {
	expected, head := readSuiteFailures(t)
	left := map[string]string{}
	pass, cases := 0, 0
	fails := func(key, reason string) {
		if listed, ok := expected[key]; ok {
			left[key] = listed
		} else {
			t.Errorf("%s is refused, and is not in %s: %s", key, suiteFailures, reason)
		}
	}
	for _, file := range suiteFiles(t) {
		raw, err := os.ReadFile(file)
		require.NoError(t, err)
		var groups []suiteGroup
		require.NoError(t, json.Unmarshal(raw, &groups))
		for _, group := range groups {
			key := strings.TrimSuffix(filepath.Base(file), ".json") + " / " + group.Description
			cases += len(group.Tests)
			free, err := Compile(Source{Kind: JSONSchema, Text: string(group.Schema), AnyOrder: true}, byteTokens())
			if err != nil {
				fails(key, err.Error())
				continue
			}
			ordered, err := Compile(Source{Kind: JSONSchema, Text: string(group.Schema)}, byteTokens())
			require.NoError(t, err, key)
			for _, test := range group.Tests {
				text := written(t, test.Data)
				switch got := accepts(free, text); {
				case (got || accepts(ordered, text)) && !test.Valid:
					t.Errorf("%s / %s: the invalid value %s is accepted", key, test.Description, text)
				case got == test.Valid:
					pass++
				default:
					fails(key+" / "+test.Description, "the valid value "+text)
				}
			}
		}
	}
	t.Logf("%d of %d cases pass", pass, cases)
	for key := range expected {
		if left[key] == "" && !*repotest.Update {
			t.Errorf("%s passes: delete it from %s, or run this test with -update", key, suiteFailures)
		}
	}
	if *repotest.Update {
		for _, key := range slices.Sorted(maps.Keys(left)) {
			head += key + ": " + left[key] + "\n"
		}
		require.NoError(t, os.WriteFile(suiteFailures, []byte(head), 0o600))
	}
}

// suiteFiles returns the files of the suite. They lie in a module that has them for its own tests.
func suiteFiles(t *testing.T) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-mod=mod", "-m", "-f", "{{.Dir}}", "github.com/google/jsonschema-go")
	cmd.Dir, cmd.Env = "testdata/suite", append(os.Environ(), "GOWORK=off", "GOFLAGS=", "GOPROXY=off")
	out, err := cmd.Output()
	home := strings.TrimSpace(string(out))
	var exit *exec.ExitError
	// Without the module go prints no directory; without its go.mod as well it wants to look it up.
	if missing := errors.As(err, &exit) && strings.Contains(string(exit.Stderr), "GOPROXY=off"); missing || err == nil && home == "" {
		t.Skip("the module cache has no github.com/google/jsonschema-go: run go mod download in gpuworker/guide/testdata/suite")
	}
	require.NoError(t, err)
	files, err := filepath.Glob(filepath.Join(home, "jsonschema", "testdata", "draft2020-12", "*.json"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	return files
}

// readSuiteFailures returns the reasons of what is expected to be refused, and the comments at the head of
// the file.
func readSuiteFailures(t *testing.T) (expected map[string]string, head string) {
	t.Helper()
	raw, err := os.ReadFile(suiteFailures)
	require.NoError(t, err)
	expected = map[string]string{}
	for line := range strings.Lines(string(raw)) {
		if strings.HasPrefix(line, "#") {
			head += line
			continue
		}
		i := strings.LastIndex(line, ": ")
		require.Positive(t, i, "%s: %q has no reason", suiteFailures, line)
		expected[line[:i]] = strings.TrimSpace(line[i+2:])
	}
	return expected, head
}

// written is a JSON value without white space and needless escapes, its properties in their order.
func written(t *testing.T, raw json.RawMessage) string {
	t.Helper()
	b := newBuilder()
	v := b.parseJSON(string(raw))
	require.Nil(t, b.err)
	var out strings.Builder
	var write func(v *jsonValue)
	write = func(v *jsonValue) {
		switch v.kind {
		case jsonNull:
			out.WriteString("null")
		case jsonBool:
			out.WriteString(map[bool]string{true: "true", false: "false"}[v.truth])
		case jsonNumber:
			out.WriteString(v.text)
		case jsonString:
			out.WriteString(`"` + quotedText(v.text) + `"`)
		case jsonArray:
			out.WriteByte('[')
			for i, item := range v.items {
				if i > 0 {
					out.WriteByte(',')
				}
				write(item)
			}
			out.WriteByte(']')
		case jsonObject:
			out.WriteByte('{')
			for i, k := range v.keys {
				if i > 0 {
					out.WriteByte(',')
				}
				out.WriteString(`"` + quotedText(k) + `":`)
				write(v.fields[k])
			}
			out.WriteByte('}')
		}
	}
	write(v)
	return out.String()
}
