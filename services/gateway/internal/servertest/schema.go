package servertest

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
)

// Environment variables with the paths of published schemas, of which the tree has no copy.
const (
	// OpenAI is the openapi.json of github.com/openai/openai-openapi.
	OpenAI = "MILLRACE_OPENAI_OPENAPI"
	// OpenResponses is the public/openapi/openapi.json of github.com/openresponses/openresponses.
	OpenResponses = "MILLRACE_OPEN_RESPONSES_OPENAPI"
)

// resource is the address under which a file of schemas is compiled.
const resource = "file:///schemas.json"

// Schemas are the JSON schemas of a file.
type Schemas struct {
	compiler *jsonschema.Compiler
	base     string // JSON pointer of the schemas that have a name
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
	s := &Schemas{jsonschema.NewCompiler(), base + "/", map[string]*jsonschema.Schema{}}
	require.NoError(t, s.compiler.AddResource(resource, parsed))
	return s
}

// OpenPublishedSchemas opens the schemas of an environment variable, and skips the test where there
// are none.
func OpenPublishedSchemas(t testing.TB, variable string) *Schemas {
	t.Helper()
	path := os.Getenv(variable)
	if path == "" {
		t.Skip("set " + variable + " to the path of a published openapi.json: docs/decisions/082-schemas-of-http-answers.md")
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

// Require checks a JSON text against the schema of a name, or of a JSON pointer.
func (s *Schemas) Require(t testing.TB, name, text string) {
	t.Helper()
	schema := s.compiled[name]
	if schema == nil {
		pointer := name
		if !strings.HasPrefix(name, "/") {
			pointer = s.base + name
		}
		var err error
		schema, err = s.compiler.Compile(resource + "#" + pointer)
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
