package responses

import (
	"testing"

	"github.com/millrace/millrace/services/gateway/internal/servertest"
)

func TestDocumentHasEveryField(t *testing.T) {
	servertest.RequireDocumented(t, "Fields of responses", servertest.FieldsOf(request{}, ""))
}
