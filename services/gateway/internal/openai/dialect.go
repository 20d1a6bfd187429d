package openai

import (
	"time"

	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/target"
)

// Dialect is OpenAI's API over the servers of a client.
type Dialect struct {
	client *target.Client
	now    func() time.Time
}

// New returns the dialect.
func New(client *target.Client) *Dialect { return &Dialect{client: client, now: time.Now} }

// Routes implements httpapi.Dialect.
func (d *Dialect) Routes() []httpapi.Route {
	return []httpapi.Route{
		{Pattern: "POST /v1/chat/completions", Handle: d.chat},
		{Pattern: "POST /v1/completions", Handle: d.complete},
		{Pattern: "POST /v1/embeddings", Handle: d.embed},
		{Pattern: "POST /v1/rerank", Handle: d.rerank},
		{Pattern: "POST /v2/rerank", Handle: d.rerank},
		{Pattern: "POST /rerank", Handle: d.rerank},
		{Pattern: "GET /v1/models", Handle: d.listModels},
		{Pattern: "GET /v1/models/{id...}", Handle: d.getModel},
		{Pattern: "POST /tokenize", Handle: d.tokenize},
		{Pattern: "POST /detokenize", Handle: d.detokenize},
	}
}

var _ httpapi.Dialect = (*Dialect)(nil)
