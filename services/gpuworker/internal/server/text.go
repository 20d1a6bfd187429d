package server

import (
	"context"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/gpuworker/prompt"
	"github.com/millrace/millrace/gpuworker/tokenizer"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/auth"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/textlimit"
)

const (
	// idBytes is the least that a token takes of a TokenizeResponse: a byte of its id, and tag and
	// length of its piece.
	idBytes = 3
	// idMemory is the memory of a token's id and of its piece's slice header. The piece's bytes
	// belong to the vocabulary.
	idMemory = 4 + 24
)

// Tokenize implements InferenceService.
func (s *Server) Tokenize(ctx context.Context, in *pb.TokenizeRequest) (*pb.TokenizeResponse, error) {
	if err := invalid(checkTokenize(in)); err != nil {
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
		rendered, err := offer.Render(ctx, in.GetFairnessId(), *input.Chat)
		if err != nil {
			return nil, statusOf(err)
		}
		out.Rendered, input.Text, special.SpecialWithin = rendered.Text, rendered.Text, rendered.Own
	}
	set(&special.AddSpecial, in.AddSpecial)
	if in.ParseSpecial != nil { // it holds for the template and the messages alike
		special.ParseSpecial, special.SpecialWithin = in.GetParseSpecial(), nil
	}
	// Refuse a text that is too long for any response before it is encoded. The encoder stops at
	// MaxIDs.
	fewest := len(input.Text) / max(inst.Tokenizer.LongestPiece(), 1)
	if least := len(input.Text) + len(out.Rendered) + fewest*idBytes; least > textlimit.Bytes {
		return nil, tooLarge(least)
	}
	special.MaxIDs = max((textlimit.Bytes-len(out.Rendered))/idBytes, 1)
	ids, err := s.encoder.Encode(ctx, offer, in.GetFairnessId(), input.Text, special)
	if err != nil {
		return nil, statusOf(err)
	}
	auth.MeterOf(ctx).Add(int64(len(ids)))
	bytes := tokenizeBytes(inst.Tokenizer, ids, out.Rendered)
	if bytes > textlimit.Bytes {
		return nil, tooLarge(bytes)
	}
	if err := rpc.ReserveResponse(ctx, int64(bytes+len(out.Rendered)+idMemory*len(ids)), rpc.WorkerDomain); err != nil {
		return nil, err
	}
	out.TokenIds, out.Pieces = make([]uint32, len(ids)), make([][]byte, len(ids))
	for i, id := range ids {
		out.TokenIds[i] = uint32(id)
		out.Pieces[i], _ = inst.Tokenizer.Piece(id)
	}
	return out, nil
}

// checkTokenize returns the violations of a request that do not depend on its model.
func checkTokenize(in *pb.TokenizeRequest) []rpc.Violation {
	c := &Checker{}
	if in.GetModel() == "" {
		c.Add("model", "is required: the name of a loaded model")
	}
	switch input := in.GetInput().(type) {
	case nil:
		c.Add("input", "one of text and chat is required")
	case *pb.TokenizeRequest_Chat:
		c.chat(input.Chat)
	}
	c.fairnessID(in.GetFairnessId())
	return c.violations
}

// tokenizeBytes returns the size of a TokenizeResponse on the wire.
func tokenizeBytes(t *tokenizer.Tokenizer, ids []int32, rendered string) int {
	packed, sum := 0, 0
	for _, id := range ids {
		piece, _ := t.Piece(id)
		packed += protowire.SizeVarint(uint64(id))
		sum += 1 + protowire.SizeBytes(len(piece))
	}
	for _, field := range []int{packed, len(rendered)} {
		if field > 0 {
			sum += 1 + protowire.SizeBytes(field)
		}
	}
	return sum
}

// Detokenize implements InferenceService.
func (s *Server) Detokenize(ctx context.Context, in *pb.DetokenizeRequest) (*pb.DetokenizeResponse, error) {
	c := &Checker{}
	if in.GetModel() == "" {
		c.Add("model", "is required: the name of a loaded model")
	}
	c.fairnessID(in.GetFairnessId())
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
	fewest, most := textBytes(inst.Tokenizer, in.GetTokenIds(), in.GetRenderSpecial())
	if least := detokenizeBytes(fewest); least > textlimit.Bytes {
		return nil, tooLarge(least)
	}
	if err := rpc.ReserveResponse(ctx, int64(most+4*len(in.GetTokenIds())), rpc.WorkerDomain); err != nil {
		return nil, err
	}
	releaseSlot, err := s.encoder.Acquire(ctx, in.GetFairnessId(), len(in.GetTokenIds()))
	if err != nil {
		return nil, statusOf(err)
	}
	defer releaseSlot()
	text, err := inst.Tokenizer.Decode(tokens(in.GetTokenIds()), tokenizer.DecodeOptions{ShowSpecial: in.GetRenderSpecial()})
	if err != nil {
		return nil, statusOf(err)
	}
	if bytes := detokenizeBytes(len(text)); bytes > textlimit.Bytes {
		return nil, tooLarge(bytes)
	}
	auth.MeterOf(ctx).Add(int64(len(in.GetTokenIds())))
	return &pb.DetokenizeResponse{Text: text}, nil
}

// detokenizeBytes returns the size of a DetokenizeResponse with a text of n bytes.
func detokenizeBytes(n int) int { return 1 + protowire.SizeBytes(n) }

// textBytes returns the least and the most bytes that the text of ids may have: a leading space may
// be left out, and a byte that is not UTF-8 becomes U+FFFD, which has three bytes.
func textBytes(t *tokenizer.Tokenizer, ids []uint32, special bool) (fewest, most int) {
	for _, id := range ids {
		if !special && t.IsSpecial(int32(id)) {
			continue
		}
		piece, _ := t.Piece(int32(id))
		fewest += len(piece)
		if utf8.Valid(piece) {
			most += len(piece)
		} else {
			most += len("\ufffd") * len(piece)
		}
	}
	return max(fewest-1, 0), most
}

// tooLarge returns the refusal of a request whose response would have at least bytes bytes.
func tooLarge(bytes int) error {
	return rpc.Error{
		Code: codes.InvalidArgument, Domain: rpc.WorkerDomain, Reason: reason.ResponseTooLarge,
		Message:  fmt.Sprintf("the response would have at least %d bytes, at most %d are sent: send the input in parts", bytes, textlimit.Bytes),
		Metadata: map[string]string{"bytes": strconv.Itoa(bytes), "max_bytes": strconv.Itoa(textlimit.Bytes)},
	}.Err()
}

// acquireText acquires a loaded model that has a tokenizer.
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
