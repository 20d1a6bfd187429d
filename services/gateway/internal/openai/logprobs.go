package openai

import (
	"context"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/target"
)

// chatLogprobs are the logprobs of a choice of a chat.
type chatLogprobs struct {
	Content []tokenLogprob `json:"content"`
	Refusal []tokenLogprob `json:"refusal"`
}

type tokenLogprob struct {
	Token   string         `json:"token"`
	Logprob float32        `json:"logprob"`
	Bytes   []int          `json:"bytes"`
	Top     []topCandidate `json:"top_logprobs"`
}

type topCandidate struct {
	Token   string  `json:"token"`
	Logprob float32 `json:"logprob"`
	Bytes   []int   `json:"bytes"`
}

// pieces finds the texts of tokens for a request.
type pieces struct {
	ctx    context.Context
	client *target.Client
	model  string
}

func (d *Dialect) piecesOf(x *httpapi.Exchange, model string) *pieces {
	return &pieces{x.Context(), d.client, model}
}

// chat returns the logprobs of tokens and their candidates. The text of a token is the text that it added to
// the answer, so that the texts of all tokens together are the answer. That of a candidate is what
// the vocabulary has.
func (p *pieces) chat(digest, text string, ids []uint32, details []*pb.TokenDetail) (*chatLogprobs, error) {
	var wanted []uint32
	for _, d := range details {
		for _, c := range d.GetCandidates() {
			wanted = append(wanted, c.GetTokenId())
		}
	}
	texts, err := p.client.Pieces(p.ctx, p.model, digest, wanted)
	if err != nil {
		return nil, err
	}
	list := make([]tokenLogprob, 0, len(details))
	for i, d := range details {
		n := min(int(d.GetTextBytes()), len(text))
		t := tokenLogprob{Token: text[:n], Logprob: d.GetLogprob(), Bytes: bytesOf(text[:n]), Top: []topCandidate{}}
		text = text[n:]
		for _, c := range d.GetCandidates() {
			piece := texts[c.GetTokenId()]
			if i < len(ids) && c.GetTokenId() == ids[i] && n > 0 {
				piece = t.Token // clients find the chosen token among its candidates by its text
			}
			t.Top = append(t.Top, topCandidate{piece, c.GetLogprob(), bytesOf(piece)})
		}
		list = append(list, t)
	}
	return &chatLogprobs{Content: list}, nil
}

// bytesOf returns the bytes of a text as JSON has them.
func bytesOf(text string) []int {
	all := make([]int, len(text))
	for i := range len(text) {
		all[i] = int(text[i])
	}
	return all
}
