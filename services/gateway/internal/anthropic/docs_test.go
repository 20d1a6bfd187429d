package anthropic

import (
	"testing"

	"github.com/millrace/millrace/services/gateway/internal/servertest"
)

func TestDocumentHasEveryField(t *testing.T) {
	servertest.RequireDocumented(t, "Fields of Anthropic's messages", servertest.FieldsOf(messagesRequest{}, ""))
}
