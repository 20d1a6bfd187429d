package server

import (
	"context"
	"fmt"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/gpuworker/tokenizer"
)

// encode turns a prompt's text into token ids. A text so long that its tokens cannot fit the context is refused without
// encoding it; as many texts are encoded at once as there are processors, since each takes many times its bytes.
func (s *Server) encode(ctx context.Context, inst *model.Instance, text string, o tokenizer.EncodeOptions) ([]int32, error) {
	// Twice the longest piece: white space that special tokens swallow is in no token.
	if most := 2 * (inst.Context + 1) * max(inst.Tokenizer.LongestPiece(), 4); len(text) > most {
		return nil, fmt.Errorf("%w: it has %d bytes; this model serves at most %d tokens", batch.ErrTooLong, len(text), inst.Context)
	}
	if err := s.takeTurn(ctx); err != nil {
		return nil, err
	}
	defer s.giveTurn()
	ids := inst.Tokenizer.Encode(text, o)
	if len(ids) == 0 {
		return nil, errNoTokens
	}
	return ids, nil
}

func (s *Server) takeTurn(ctx context.Context) error {
	select {
	case s.turns <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *Server) giveTurn() { <-s.turns }
