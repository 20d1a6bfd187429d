package openai

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"strconv"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/strictjson"
)

// embeddingRequest is the body of POST /v1/embeddings.
type embeddingRequest struct {
	Model          string   `json:"model"`
	Input          inputs   `json:"input"`
	EncodingFormat *string  `json:"encoding_format"`
	Dimensions     *int32   `json:"dimensions"`
	User           *string  `json:"user"`
	Timeout        *float64 `json:"timeout"`
}

// maxInputs is the servers' limit, and OpenAI's.
const maxInputs = 2048

// inputs are prompts, of which there may be more.
type inputs struct{ prompts }

// DecodeJSON implements strictjson.Value.
func (p *inputs) DecodeJSON(d *strictjson.Decoder) error { return p.decode(d, maxInputs) }

type embeddingList struct {
	Object string         `json:"object"`
	Data   []embedding    `json:"data"`
	Model  string         `json:"model"`
	Usage  embeddingUsage `json:"usage"`
}

type embedding struct {
	Object string `json:"object"`
	Index  int    `json:"index"`
	// Embedding is a list of numbers, or their bytes in base64.
	Embedding any `json:"embedding"`
}

type embeddingUsage struct {
	PromptTokens uint32 `json:"prompt_tokens"`
	TotalTokens  uint32 `json:"total_tokens"`
}

// Values of encoding_format.
const (
	formatFloat  = "float"
	formatBase64 = "base64"
)

// embed answers POST /v1/embeddings.
func (d *Dialect) embed(x *httpapi.Exchange) error {
	var r embeddingRequest
	if err := x.Decode(&r, nil); err != nil {
		return err
	}
	in, err := r.request(x)
	if err != nil {
		return err
	}
	out, ownTenant, err := d.client.Embed(x.Context(), in)
	if err == nil && ownTenant {
		err = x.Skip("user")
	}
	if err != nil {
		return failure(err, map[string]string{"texts": "input", "token_ids": "input"})
	}
	list := embeddingList{Object: "list", Data: []embedding{}, Model: r.Model, Usage: usageOfTexts(out.GetUsage())}
	for i, e := range out.GetEmbeddings() {
		values := any(e.GetValues())
		if r.EncodingFormat != nil && *r.EncodingFormat == formatBase64 {
			values = base64Of(e.GetValues())
		}
		list.Data = append(list.Data, embedding{"embedding", i, values})
	}
	return x.WriteJSON(list)
}

// request returns the contract's request.
func (r *embeddingRequest) request(x *httpapi.Exchange) (*pb.EmbedRequest, error) {
	switch {
	case r.Model == "":
		return nil, httpapi.Invalid("model", "is missing: GET /v1/models lists the models")
	case len(r.Input.all) == 0:
		return nil, httpapi.Invalid("input", "is missing: send a text or a list of texts")
	case r.EncodingFormat != nil && *r.EncodingFormat != formatFloat && *r.EncodingFormat != formatBase64:
		return nil, httpapi.Invalid("encoding_format", "is %.32q: must be float or base64", *r.EncodingFormat)
	case r.Dimensions != nil && *r.Dimensions < 1:
		return nil, httpapi.Invalid("dimensions", "is %d: must be at least 1", *r.Dimensions)
	}
	x.Annotate("model", r.Model)
	if err := setTimeout(x, r.Timeout); err != nil {
		return nil, err
	}
	in := &pb.EmbedRequest{Model: r.Model, FairnessId: tenantOf(r.User)}
	if r.Dimensions != nil {
		n := uint32(*r.Dimensions)
		in.Dimensions = &n
	}
	for i, p := range r.Input.all {
		path := "input"
		if r.Input.list {
			path += "[" + strconv.Itoa(i) + "]"
		}
		switch {
		case len(p.ids) > 0:
			in.TokenIds = append(in.TokenIds, &pb.TokenIds{Ids: p.ids})
		case p.text == "":
			return nil, httpapi.Invalid(path, "is empty: send at least one character or token")
		default:
			in.Texts = append(in.Texts, p.text)
		}
	}
	return in, nil
}

// base64Of returns the little-endian bytes of 32-bit floats.
func base64Of(values []float32) string {
	raw := make([]byte, 0, 4*len(values))
	for _, v := range values {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
	}
	return base64.StdEncoding.EncodeToString(raw)
}
