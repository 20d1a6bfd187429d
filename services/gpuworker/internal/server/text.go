package server

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/gpuworker/prompt"
	"github.com/millrace/millrace/gpuworker/tokenizer"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// Tokenize implements InferenceService.
func (s *Server) Tokenize(ctx context.Context, in *pb.TokenizeRequest) (*pb.TokenizeResponse, error) {
	c := &checker{}
	if in.GetModel() == "" {
		c.add("model", "is required: the name of a loaded model")
	}
	switch input := in.GetInput().(type) {
	case nil:
		c.add("input", "one of text and chat is required")
	case *pb.TokenizeRequest_Chat:
		c.chat(input.Chat)
	}
	if err := invalid(c.violations); err != nil {
		return nil, err
	}
	inst, release, err := s.acquireText(in.GetModel())
	if err != nil {
		return nil, statusOf(err)
	}
	defer release()
	offer, out := offerOf(inst), &pb.TokenizeResponse{}
	input := prompt.Input{Text: in.GetText()}
	if chat := in.GetChat(); chat != nil {
		input.Chat = chatOf(chat, time.Now())
	}
	special := input.Special()
	if input.Chat != nil {
		rendered, err := offer.Render(ctx, *input.Chat)
		if err != nil {
			return nil, statusOf(err)
		}
		out.Rendered, input.Text, special.SpecialWithin = rendered.Text, rendered.Text, rendered.Own
	}
	set(&special.AddSpecial, in.AddSpecial)
	if in.ParseSpecial != nil { // everywhere or nowhere, whoever wrote it
		special.ParseSpecial, special.SpecialWithin = in.GetParseSpecial(), nil
	}
	ids, err := s.encoder.Encode(ctx, offer, input.Text, special)
	if err != nil {
		return nil, statusOf(err)
	}
	out.TokenIds, out.Pieces = make([]uint32, len(ids)), make([][]byte, len(ids))
	for i, id := range ids {
		out.TokenIds[i] = uint32(id)
		out.Pieces[i], _ = inst.Tokenizer.Piece(id)
	}
	return out, nil
}

// Detokenize implements InferenceService.
func (s *Server) Detokenize(_ context.Context, in *pb.DetokenizeRequest) (*pb.DetokenizeResponse, error) {
	c := &checker{}
	if in.GetModel() == "" {
		c.add("model", "is required: the name of a loaded model")
	}
	if err := invalid(c.violations); err != nil {
		return nil, err
	}
	inst, release, err := s.acquireText(in.GetModel())
	if err != nil {
		return nil, statusOf(err)
	}
	defer release()
	c.ids("token_ids", in.GetTokenIds(), inst.Tokenizer.VocabSize())
	if err := invalid(c.violations); err != nil {
		return nil, err
	}
	text, err := inst.Tokenizer.Decode(tokens(in.GetTokenIds()), tokenizer.DecodeOptions{ShowSpecial: in.GetRenderSpecial()})
	if err != nil {
		return nil, statusOf(err)
	}
	return &pb.DetokenizeResponse{Text: text}, nil
}

// acquireText gives a loaded model that has a tokenizer.
func (s *Server) acquireText(name string) (*model.Instance, func(), error) {
	inst, release, err := s.models.Acquire(name)
	if err != nil {
		return nil, nil, err
	}
	if inst.Tokenizer == nil {
		release()
		return nil, nil, fmt.Errorf("%w: %q works by token ids", prompt.ErrNoTokenizer, name)
	}
	return inst, release, nil
}
