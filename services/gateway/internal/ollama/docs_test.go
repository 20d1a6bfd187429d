package ollama

import (
	"slices"
	"testing"

	"github.com/millrace/millrace/services/gateway/internal/servertest"
)

func TestDocumentHasEveryField(t *testing.T) {
	servertest.RequireDocumented(t, "Fields of Ollama's chat and generate", slices.Concat(servertest.FieldsOf(common{}, ""),
		[]string{"chat `messages`", "chat `tools`"}, generateOnly()))
	servertest.RequireDocumented(t, "Options of Ollama's requests", servertest.FieldsOf(options{}, ""))
	servertest.RequireDocumented(t, "Fields of Ollama's other paths", slices.Concat(
		servertest.FieldsOf(embedRequest{}, "`/api/embed` "), servertest.FieldsOf(embeddingsRequest{}, "`/api/embeddings` "), servertest.FieldsOf(showRequest{}, "`/api/show` ")))
}

// generateOnly returns the fields that generate does not share with chat.
func generateOnly() (names []string) {
	shared := servertest.FieldsOf(common{}, "generate ")
	for _, name := range servertest.FieldsOf(generateRequest{}, "generate ") {
		if !slices.Contains(shared, name) {
			names = append(names, name)
		}
	}
	return names
}
