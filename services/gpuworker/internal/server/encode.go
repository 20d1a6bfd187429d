package server

import (
	"context"
	"fmt"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/gpuworker/tokenizer"
)

// encode turns a prompt's text into token ids. A text so long that its tokens cannot fit the context is refused without
// encoding it.
func (s *Server) encode(ctx context.Context, inst *model.Instance, text string, o tokenizer.EncodeOptions) ([]int32, error) {
	// Twice the longest piece: white space that special tokens swallow is in no token.
	if most := 2 * (inst.Context + 1) * max(inst.Tokenizer.LongestPiece(), 4); len(text) > most {
		return nil, fmt.Errorf("%w: it has %d bytes; this model serves at most %d tokens", batch.ErrTooLong, len(text), inst.Context)
	}
	ids, err := s.inTurn(ctx, inst, text, o)
	if err == nil && len(ids) == 0 {
		err = errNoTokens
	}
	return ids, err
}

// inTurn encodes a text when it is its turn: as many are encoded at once as there are processors, since each takes many
// times its bytes. The texts that wait are bounded by the bytes that the server holds of requests. A turn is given back also
// by an encoder that panics.
func (s *Server) inTurn(ctx context.Context, inst *model.Instance, text string, o tokenizer.EncodeOptions) ([]int32, error) {
	select {
	case s.turns <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-s.turns }()
	return inst.Tokenizer.Encode(text, o), nil
}
