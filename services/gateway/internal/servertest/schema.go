package servertest

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
)

// PublishedSchemas names the environment variable with the path of OpenAI's published openapi.json, of
// which the tree has no copy.
const PublishedSchemas = "MILLRACE_OPENAI_OPENAPI"

// Schemas are the JSON schemas of a file.
type Schemas struct {
	compiler *jsonschema.Compiler
	base     string
	compiled map[string]*jsonschema.Schema
}

// OpenSchemas opens a file of schemas, whose names are in $defs.
func OpenSchemas(t testing.TB, path string) *Schemas {
	t.Helper()
	return compilerOf(t, parse(t, path), "/$defs")
}

func parse(t testing.TB, path string) any {
	t.Helper()
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	parsed, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	require.NoError(t, err)
	return parsed
}

func compilerOf(t testing.TB, parsed any, base string) *Schemas {
	t.Helper()
	s := &Schemas{jsonschema.NewCompiler(), "file:///schemas.json#" + base + "/", map[string]*jsonschema.Schema{}}
	require.NoError(t, s.compiler.AddResource("file:///schemas.json", parsed))
	return s
}

// OpenPublishedSchemas opens OpenAI's schemas, and skips the test where there are none.
func OpenPublishedSchemas(t testing.TB) *Schemas {
	t.Helper()
	path := os.Getenv(PublishedSchemas)
	if path == "" {
		t.Skip("set " + PublishedSchemas + " to the path of the openapi.json of github.com/openai/openai-openapi")
	}
	parsed := parse(t, path)
	modernise(parsed)
	return compilerOf(t, parsed, "/components/schemas")
}

// modernise replaces keywords of earlier drafts that the published file has: nullable of OpenAPI 3.0,
// and a recursive reference, which no answer of ours reaches.
func modernise(value any) {
	switch v := value.(type) {
	case []any:
		for _, element := range v {
			modernise(element)
		}
	case map[string]any:
		for _, element := range v {
			modernise(element)
		}
		delete(v, "$recursiveAnchor")
		delete(v, "$recursiveRef")
		if v["nullable"] != true {
			return
		}
		if name, ok := v["type"].(string); ok {
			v["type"] = []any{name, "null"}
		}
		if ref, ok := v["$ref"]; ok {
			delete(v, "$ref")
			v["anyOf"] = []any{map[string]any{"$ref": ref}, map[string]any{"type": "null"}}
		}
		if words, ok := v["enum"].([]any); ok {
			v["enum"] = append(words, nil)
		}
	}
}

// Require checks a JSON text against the schema of a name.
func (s *Schemas) Require(t testing.TB, name, text string) {
	t.Helper()
	schema := s.compiled[name]
	if schema == nil {
		var err error
		schema, err = s.compiler.Compile(s.base + name)
		require.NoError(t, err)
		s.compiled[name] = schema
	}
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	require.NoError(t, err, text)
	require.NoError(t, schema.Validate(value), text)
}

// Data returns the data of each event of a stream, without [DONE].
func Data(stream string) (all []string) {
	for line := range strings.Lines(stream) {
		if data, ok := strings.CutPrefix(line, "data: "); ok && data != "[DONE]\n" {
			all = append(all, data)
		}
	}
	return all
}
