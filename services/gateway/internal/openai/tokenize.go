package openai

import (
	"strings"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/strictjson"
)

// tokenizeRequest is the body of POST /tokenize, as vLLM has it: a prompt or messages.
type tokenizeRequest struct {
	Model               string         `json:"model"`
	Prompt              *string        `json:"prompt"`
	Messages            []message      `json:"messages"`
	AddSpecialTokens    *bool          `json:"add_special_tokens"`
	AddGenerationPrompt *bool          `json:"add_generation_prompt"`
	ReturnTokenStrs     *bool          `json:"return_token_strs"`
	ChatTemplateKwargs  strictjson.Raw `json:"chat_template_kwargs"`
}

type tokenizeAnswer struct {
	Count       int      `json:"count"`
	MaxModelLen uint32   `json:"max_model_len,omitempty"`
	Tokens      []uint32 `json:"tokens"`
	TokenStrs   []string `json:"token_strs"`
}

// tokenize answers POST /tokenize.
func (d *Dialect) tokenize(x *httpapi.Exchange) error {
	var r tokenizeRequest
	if err := x.Decode(&r, nil); err != nil {
		return err
	}
	in, err := r.request(x)
	if err != nil {
		return err
	}
	out, err := d.client.Tokenize(x.Context(), in)
	if err != nil {
		return failure(err, nil)
	}
	a := tokenizeAnswer{Count: len(out.GetTokenIds()), Tokens: out.GetTokenIds()}
	if a.Tokens == nil {
		a.Tokens = []uint32{}
	}
	if r.ReturnTokenStrs != nil && *r.ReturnTokenStrs {
		a.TokenStrs = make([]string, 0, len(out.GetPieces()))
		for _, piece := range out.GetPieces() {
			a.TokenStrs = append(a.TokenStrs, strings.ToValidUTF8(string(piece), "\ufffd"))
		}
	}
	return x.WriteJSON(a)
}

// request returns the contract's request.
func (r *tokenizeRequest) request(x *httpapi.Exchange) (*pb.TokenizeRequest, error) {
	in := &pb.TokenizeRequest{Model: r.Model, AddSpecial: r.AddSpecialTokens}
	switch {
	case r.Model == "":
		return nil, httpapi.Invalid("model", "is missing: GET /v1/models lists the models")
	case (r.Prompt == nil) == (r.Messages == nil):
		return nil, httpapi.Invalid("prompt", "is missing: send either prompt or messages")
	case r.Prompt != nil:
		in.Input = &pb.TokenizeRequest_Text{Text: *r.Prompt}
	default:
		c := &chatRequest{Messages: r.Messages, AddGenerationPrompt: r.AddGenerationPrompt, ChatTemplateKwargs: r.ChatTemplateKwargs}
		chat, err := c.conversation(x)
		if err != nil {
			return nil, err
		}
		in.Input = &pb.TokenizeRequest_Chat{Chat: chat}
	}
	return in, nil
}

// detokenizeRequest is the body of POST /detokenize, as vLLM has it.
type detokenizeRequest struct {
	Model  string   `json:"model"`
	Tokens []uint32 `json:"tokens"`
}

type detokenizeAnswer struct {
	Prompt string `json:"prompt"`
}

// detokenize answers POST /detokenize. Special tokens are written out, as by vLLM.
func (d *Dialect) detokenize(x *httpapi.Exchange) error {
	var r detokenizeRequest
	if err := x.Decode(&r, nil); err != nil {
		return err
	}
	if r.Model == "" {
		return httpapi.Invalid("model", "is missing: GET /v1/models lists the models")
	}
	if r.Tokens == nil {
		return httpapi.Invalid("tokens", "is missing: send a list of token ids")
	}
	out, err := d.client.Detokenize(x.Context(), &pb.DetokenizeRequest{Model: r.Model, TokenIds: r.Tokens, RenderSpecial: proto.Bool(true)})
	if err != nil {
		return failure(err, map[string]string{"token_ids": "tokens"})
	}
	return x.WriteJSON(detokenizeAnswer{out.GetText()})
}
