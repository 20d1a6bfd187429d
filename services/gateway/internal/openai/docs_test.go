package openai

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/internal/doctable"
)

// fieldsOf returns the JSON names of a request's own fields.
func fieldsOf(request any, prefix string) (names []string) {
	t := reflect.TypeOf(request)
	for i := range t.NumField() {
		if f := t.Field(i); !f.Anonymous {
			names = append(names, prefix+"`"+f.Tag.Get("json")+"`")
		}
	}
	return names
}

func TestDocumentHasEveryField(t *testing.T) {
	for heading, want := range map[string][]string{
		"Fields of chat completions and completions": fieldsOf(parameters{}, ""),
		"Fields of chat completions only":            fieldsOf(chatRequest{}, ""),
		"Fields of completions only":                 fieldsOf(completionRequest{}, ""),
		"Fields of the other paths": slices.Concat(fieldsOf(embeddingRequest{}, "`/v1/embeddings` "),
			fieldsOf(rerankRequest{}, "`/v1/rerank` "),
			fieldsOf(tokenizeRequest{}, "`/tokenize` "), fieldsOf(detokenizeRequest{}, "`/detokenize` ")),
	} {
		var got []string
		for _, row := range (doctable.Table{Page: "http.md", Heading: heading, Columns: []string{"field", "effect", "meaning"}}).Rows(t) {
			got = append(got, strings.TrimSpace(row[0]))
			require.Contains(t, []string{"honoured", "refused", "skipped"}, row[1], row[0])
		}
		require.ElementsMatch(t, want, got, heading)
	}
}
