package ollama

import (
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/strictjson"
	"github.com/millrace/millrace/services/gateway/internal/translate"
)

// embedRequest is the body of POST /api/embed.
type embedRequest struct {
	Model string `json:"model"`
	Input texts  `json:"input"`
	// Truncate cuts a text that is longer than the context; nil is true, as Ollama has it.
	Truncate   *bool  `json:"truncate"`
	Dimensions *int32 `json:"dimensions"`

	// Skipped.
	KeepAlive strictjson.Raw `json:"keep_alive"`
	Options   strictjson.Raw `json:"options"`
}

type embedAnswer struct {
	Model           string      `json:"model"`
	Embeddings      [][]float32 `json:"embeddings"`
	TotalDuration   int64       `json:"total_duration"`
	LoadDuration    int64       `json:"load_duration"`
	PromptEvalCount uint32      `json:"prompt_eval_count"`
}

// request returns the contract's request.
func (r *embedRequest) request(x *httpapi.Exchange) (*pb.EmbedRequest, error) {
	switch {
	case r.Model == "":
		return nil, httpapi.Invalid("model", "is missing: GET /api/tags lists the models")
	case len(r.Input) == 0:
		return nil, httpapi.Invalid("input", "is missing: send a text or a list of texts")
	case r.Dimensions != nil && *r.Dimensions < 1:
		return nil, httpapi.Invalid("dimensions", "is %d: must be at least 1", *r.Dimensions)
	}
	x.Annotate("model", r.Model)
	cut := r.Truncate == nil || *r.Truncate
	in := &pb.EmbedRequest{Model: name(r.Model), Texts: r.Input, Truncate: &cut}
	if r.Dimensions != nil {
		n := uint32(*r.Dimensions)
		in.Dimensions = &n
	}
	return in, translate.Skip(x,
		translate.Field{Param: "keep_alive", Set: r.KeepAlive != nil}, translate.Field{Param: "options", Set: r.Options != nil},
	)
}

// embed answers POST /api/embed.
func (d *Dialect) embed(x *httpapi.Exchange) error {
	begin := d.now()
	var r embedRequest
	if err := x.Decode(&r, nil); err != nil {
		return err
	}
	in, err := r.request(x)
	if err != nil {
		return err
	}
	out, _, err := d.client.Embed(x.Context(), in)
	if err != nil {
		return paths.Failure(err)
	}
	a := embedAnswer{
		Model: r.Model, Embeddings: [][]float32{}, TotalDuration: d.now().Sub(begin).Nanoseconds(),
		PromptEvalCount: out.GetUsage().GetPromptTokens(),
	}
	for _, e := range out.GetEmbeddings() {
		a.Embeddings = append(a.Embeddings, e.GetValues())
	}
	return x.WriteJSON(a)
}

// embeddingsRequest is the body of POST /api/embeddings, which clients of earlier versions use.
type embeddingsRequest struct {
	Model  string `json:"model"`
	Prompt string `json:"prompt"`

	// Skipped.
	KeepAlive strictjson.Raw `json:"keep_alive"`
	Options   strictjson.Raw `json:"options"`
}

type embeddingsAnswer struct {
	Embedding []float32 `json:"embedding"`
}

// embeddings answers POST /api/embeddings: one vector, which is not divided by its length.
func (d *Dialect) embeddings(x *httpapi.Exchange) error {
	var r embeddingsRequest
	if err := x.Decode(&r, nil); err != nil {
		return err
	}
	if r.Prompt == "" {
		return httpapi.Invalid("prompt", "is missing: send a text")
	}
	in, err := (&embedRequest{Model: r.Model, Input: texts{r.Prompt}, KeepAlive: r.KeepAlive, Options: r.Options}).request(x)
	if err != nil {
		return err
	}
	in.Normalize = new(bool)
	out, _, err := d.client.Embed(x.Context(), in)
	if err != nil {
		return paths.Failure(err)
	}
	a := embeddingsAnswer{Embedding: []float32{}}
	for _, e := range out.GetEmbeddings() {
		a.Embedding = e.GetValues()
	}
	return x.WriteJSON(a)
}
