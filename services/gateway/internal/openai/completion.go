package openai

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/resume"
	"github.com/millrace/millrace/services/gateway/internal/strictjson"
	"github.com/millrace/millrace/services/internal/rpc"
)

// maxPrompts bounds the prompts of one request. Each is a call of its own.
const maxPrompts = 128

// completionRequest is the body of POST /v1/completions.
type completionRequest struct {
	parameters
	Prompt   prompts `json:"prompt"`
	Echo     *bool   `json:"echo"`
	Logprobs *int32  `json:"logprobs"`
	BestOf   *int32  `json:"best_of"`

	// Refused.
	Suffix           *string `json:"suffix"`
	AddSpecialTokens *bool   `json:"add_special_tokens"`
}

// input is one prompt: token ids, or a text if ids is nil.
type input struct {
	text string
	ids  []uint32
}

// prompts is a text, a list of texts, a list of token ids, or a list of such lists.
type prompts struct {
	all  []input
	list bool // they are elements of a list
}

// DecodeJSON implements strictjson.Value.
func (p *prompts) DecodeJSON(d *strictjson.Decoder) error { return p.decode(d, maxPrompts) }

// decode reads at most maxPrompts prompts.
func (p *prompts) decode(d *strictjson.Decoder, most int) error {
	if d.Kind() == strictjson.String {
		p.all = make([]input, 1)
		return d.Decode(&p.all[0].text)
	}
	var first strictjson.Kind
	return d.Elements(func(i int) error {
		kind := d.Kind()
		if i == 0 {
			first = kind
		}
		if kind != first {
			return d.Errorf("is %s, and the element before it is %s: all must be of one kind", kind, first)
		}
		if kind == strictjson.Number {
			if i == 0 {
				p.all = make([]input, 1)
			}
			var id uint32
			err := d.Decode(&id)
			p.all[0].ids = append(p.all[0].ids, id)
			return err
		}
		if p.list = true; i == most {
			return d.Errorf("is one prompt too many: at most %d are accepted", most)
		}
		p.all = append(p.all, input{})
		if kind == strictjson.Array {
			return d.Decode(&p.all[i].ids)
		}
		return d.Decode(&p.all[i].text)
	})
}

// path returns the JSON path of a prompt.
func (p *prompts) path(i int) string {
	if p.list {
		return "prompt[" + strconv.Itoa(i) + "]"
	}
	return "prompt"
}

// complete answers POST /v1/completions.
func (d *Dialect) complete(x *httpapi.Exchange) error {
	var r completionRequest
	if err := x.Decode(&r, nil); err != nil {
		return err
	}
	in, err := r.request(x)
	if err != nil {
		return err
	}
	outputs := 0 // events of several prompts have no ids
	if len(in) == 1 {
		outputs = r.outputs()
	}
	answer, err := resume.Open(x, d.now(), r.Stream, outputs)
	if err != nil {
		return err
	}
	r.Seed = answer.Prepare(in[0], r.Seed)
	reply := newCompletionReply(&r, answer, d.piecesOf(x, r.Model))
	own := r.paths()
	own["response.output_candidates"], own["response.prompt_logprobs"] = "logprobs", "logprobs"
	if err := d.generateAll(x, in, own, reply); err != nil {
		return failure(err, own)
	}
	return reply.end(x)
}

// request returns the contract's request for each prompt.
func (r *completionRequest) request(x *httpapi.Exchange) ([]*pb.GenerateRequest, error) {
	for _, f := range []struct {
		param string
		set   bool
		text  string
	}{
		{"suffix", r.Suffix != nil && *r.Suffix != "", "the models do not fill in the middle: leave it out"},
		{"add_special_tokens", r.AddSpecialTokens != nil && !*r.AddSpecialTokens, "send token ids as the prompt, of POST /tokenize with add_special_tokens false"},
		{"best_of", r.BestOf != nil && int(*r.BestOf) != r.outputs(), "every continuation is returned: leave it out"},
	} {
		if f.set {
			return nil, httpapi.Unsupported(f.param, "is not supported: %s", f.text)
		}
	}
	if len(r.Prompt.all) == 0 {
		return nil, httpapi.Invalid("prompt", "is missing: send a text, or a list of texts or token ids")
	}
	common, err := r.parameters.request(x)
	if err != nil {
		return nil, err
	}
	if r.Logprobs != nil || r.echo() {
		common.Response = &pb.ResponseOptions{}
		if r.Logprobs != nil {
			common.Response.OutputLogprobs, common.Response.OutputCandidates = proto.Bool(true), r.Logprobs
		}
		if r.echo() {
			common.Response.EchoPrompt, common.Response.PromptLogprobs = proto.Bool(true), r.Logprobs
		}
	}
	all := make([]*pb.GenerateRequest, len(r.Prompt.all))
	for i, p := range r.Prompt.all {
		if p.text == "" && len(p.ids) == 0 {
			return nil, httpapi.Invalid(r.Prompt.path(i), "is empty: send at least one character or token id")
		}
		all[i] = common
		if len(r.Prompt.all) > 1 {
			all[i] = proto.CloneOf(common)
			if id := x.ID + "-" + strconv.Itoa(i); rpc.ValidRequestID(id) {
				all[i].RequestId = &id
			}
		}
		if p.ids != nil {
			all[i].Input = &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: p.ids}}
		} else {
			all[i].Input = &pb.GenerateRequest_Prompt{Prompt: p.text}
		}
	}
	return all, nil
}

func (r *completionRequest) echo() bool { return r.Echo != nil && *r.Echo }

// generateAll runs a generation for each request, all at the same time, and adds each event to the
// reply. The first error ends all.
func (d *Dialect) generateAll(x *httpapi.Exchange, in []*pb.GenerateRequest, own map[string]string, reply *completionReply) error {
	if len(in) == 1 {
		g, err := d.start(x, in[0], own)
		if err != nil {
			return err
		}
		return reply.out.Each(g, func(e *pb.GenerateResponse) error { return reply.event(0, e) })
	}
	type event struct {
		i   int
		e   *pb.GenerateResponse
		err error // io.EOF: it has ended
	}
	ctx, cancel := context.WithCancel(x.Context())
	events := make(chan event)
	send := func(e event) error {
		select {
		case events <- e:
			return e.err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	running := len(in)
	ended := make(chan struct{}, running)
	for i := range in {
		go func() {
			defer func() { ended <- struct{}{} }()
			g, err := d.client.Generate(ctx, in[i])
			if err == nil {
				err = g.Each(func(e *pb.GenerateResponse) error { return send(event{i, e, nil}) })
			}
			if err == nil {
				err = io.EOF
			}
			_ = send(event{i, nil, err}) // the context may have ended
		}()
	}
	defer func() {
		cancel()
		for range in {
			<-ended
		}
	}()
	for running > 0 {
		select {
		case got := <-events:
			switch {
			case errors.Is(got.err, io.EOF):
				running--
			case got.err != nil:
				return got.err
			default:
				if err := reply.event(got.i, got.e); err != nil {
					return err
				}
				if err := reply.out.Flush(); err != nil {
					return err
				}
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// echoText returns the text of a prompt.
func (p *pieces) echoText(in input) (string, error) {
	if in.ids == nil {
		return in.text, nil
	}
	special := true
	out, err := p.client.Detokenize(p.ctx, &pb.DetokenizeRequest{Model: p.model, TokenIds: in.ids, RenderSpecial: &special})
	return out.GetText(), err
}

// prompt returns the texts of a prompt's tokens.
func (p *pieces) prompt(digest string, in input, ids []uint32) ([]string, error) {
	texts := make([]string, len(ids))
	if in.ids == nil {
		out, err := p.client.Tokenize(p.ctx, &pb.TokenizeRequest{Model: p.model, Input: &pb.TokenizeRequest_Text{Text: in.text}})
		if err != nil {
			return nil, err
		}
		if len(out.GetPieces()) == len(ids) {
			for i, piece := range out.GetPieces() {
				texts[i] = strings.ToValidUTF8(string(piece), "\ufffd")
			}
			return texts, nil
		}
	}
	found, err := p.client.Pieces(p.ctx, p.model, digest, ids)
	for i, id := range ids {
		texts[i] = found[id]
	}
	return texts, err
}
