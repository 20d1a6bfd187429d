package openai

import (
	"strconv"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/strictjson"
	"github.com/millrace/millrace/services/gateway/internal/target"
)

// rerankRequest is the body of POST /v1/rerank, which Jina, Cohere and vLLM have.
type rerankRequest struct {
	Model           string    `json:"model"`
	Query           document  `json:"query"`
	Documents       documents `json:"documents"`
	TopN            *int32    `json:"top_n"`
	ReturnDocuments *bool     `json:"return_documents"`
	Instruction     *string   `json:"instruction"`
	Truncate        *bool     `json:"truncate"`
	User            *string   `json:"user"`
	Timeout         *float64  `json:"timeout"`

	// Refused.
	MaxTokensPerDoc *int32 `json:"max_tokens_per_doc"`
	MaxChunksPerDoc *int32 `json:"max_chunks_per_doc"`
}

// maxDocuments is the servers' limit.
const maxDocuments = 2048

// document is a text, or an object with one.
type document struct {
	text string
	set  bool
}

// DecodeJSON implements strictjson.Value.
func (t *document) DecodeJSON(d *strictjson.Decoder) error {
	t.set = true
	if d.Kind() == strictjson.String {
		return d.Decode(&t.text)
	}
	var object struct {
		Text string `json:"text"`
	}
	err := d.Decode(&object)
	t.text = object.Text
	return err
}

type documents []string

// DecodeJSON implements strictjson.Value.
func (l *documents) DecodeJSON(d *strictjson.Decoder) error {
	return d.Elements(func(i int) error {
		if i == maxDocuments {
			return d.Errorf("is one document too many: at most %d are accepted", maxDocuments)
		}
		var t document
		err := d.Decode(&t)
		*l = append(*l, t.text)
		return err
	})
}

type rerankAnswer struct {
	Model   string         `json:"model"`
	Results []rerankResult `json:"results"`
	Usage   embeddingUsage `json:"usage"`
}

type rerankResult struct {
	Index          uint32          `json:"index"`
	RelevanceScore float32         `json:"relevance_score"`
	Document       *rerankDocument `json:"document,omitempty"`
}

type rerankDocument struct {
	Text string `json:"text"`
}

// rerank answers POST /v1/rerank. The contract's answer has no documents, because the caller has
// them; return_documents adds them here.
func (d *Dialect) rerank(x *httpapi.Exchange) error {
	var r rerankRequest
	if err := x.Decode(&r, nil); err != nil {
		return err
	}
	in, err := r.request(x)
	if err != nil {
		return err
	}
	out, ownTenant, err := d.client.Rerank(x.Context(), in)
	if err == nil && ownTenant {
		err = x.Skip("user")
	}
	if err != nil {
		return failure(err, nil)
	}
	answer := rerankAnswer{Model: r.Model, Results: []rerankResult{}, Usage: usageOfTexts(out.GetUsage())}
	for _, result := range out.GetResults() {
		one := rerankResult{Index: result.GetIndex(), RelevanceScore: result.GetScore()}
		if i := int(result.GetIndex()); r.ReturnDocuments != nil && *r.ReturnDocuments && i < len(in.GetDocuments()) {
			one.Document = &rerankDocument{in.GetDocuments()[i]}
		}
		answer.Results = append(answer.Results, one)
	}
	return x.WriteJSON(answer)
}

// request returns the contract's request.
func (r *rerankRequest) request(x *httpapi.Exchange) (*pb.RerankRequest, error) {
	switch {
	case r.Model == "":
		return nil, httpapi.Invalid("model", "is missing: GET /v1/models lists the models")
	case !r.Query.set || r.Query.text == "":
		return nil, httpapi.Invalid("query", "is missing: send what the documents are judged by")
	case len(r.Documents) == 0:
		return nil, httpapi.Invalid("documents", "is missing: send a list of texts")
	case r.TopN != nil && *r.TopN < 1:
		return nil, httpapi.Invalid("top_n", "is %s: must be at least 1", strconv.Itoa(int(*r.TopN)))
	case r.MaxTokensPerDoc != nil:
		return nil, httpapi.Unsupported("max_tokens_per_doc", "is not supported: truncate cuts a document at the end of the context")
	case r.MaxChunksPerDoc != nil:
		return nil, httpapi.Unsupported("max_chunks_per_doc", "is not supported: a document is scored as a whole")
	}
	x.Annotate("model", r.Model)
	if err := setTimeout(x, r.Timeout); err != nil {
		return nil, err
	}
	in := &pb.RerankRequest{
		Model: r.Model, Query: r.Query.text, Documents: r.Documents, Instruction: r.Instruction, Truncate: r.Truncate,
		FairnessId: tenantOf(r.User),
	}
	if r.TopN != nil {
		n := uint32(*r.TopN)
		in.TopN = &n
	}
	return in, nil
}

// tenantOf returns whose share of the servers a request uses; nil without a name.
func tenantOf(user *string) *string {
	if user == nil || *user == "" {
		return nil
	}
	id := target.Token(*user)
	return &id
}

func setTimeout(x *httpapi.Exchange, seconds *float64) error {
	if seconds == nil {
		return nil
	}
	return x.SetTimeout(*seconds, "timeout")
}

// usageOfTexts returns the counts of an answer without generated tokens.
func usageOfTexts(u *pb.Usage) embeddingUsage {
	return embeddingUsage{PromptTokens: u.GetPromptTokens(), TotalTokens: u.GetPromptTokens()}
}
