package target

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

const (
	// maxPieces bounds the texts of tokens that are remembered, of all models together.
	maxPieces = 1 << 18
	// pieceCalls bounds the calls that one request makes for texts at the same time.
	pieceCalls = 16
)

// pieceKey names a token of a vocabulary.
type pieceKey struct {
	digest string
	id     uint32
}

// pieceCache remembers texts of tokens. A model's digest determines them.
type pieceCache struct {
	mu    sync.Mutex
	texts map[pieceKey]string // guarded by mu
}

// Pieces returns the text of each token of a model with the given digest. It asks a server for each
// text that it does not remember, because the contract has no call for several.
func (c *Client) Pieces(ctx context.Context, model, digest string, ids []uint32) (map[uint32]string, error) {
	found := make(map[uint32]string, len(ids))
	var missing []uint32
	c.pieces.mu.Lock()
	for _, id := range ids {
		if _, again := found[id]; again {
			continue
		}
		text, ok := c.pieces.texts[pieceKey{digest, id}]
		found[id] = text
		if !ok {
			missing = append(missing, id)
		}
	}
	c.pieces.mu.Unlock()
	if len(missing) == 0 {
		return found, nil
	}
	texts := make([]string, len(missing))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(pieceCalls)
	special := true
	for i, id := range missing {
		group.Go(func() error {
			out, err := c.infer.Detokenize(ctx, &pb.DetokenizeRequest{Model: model, TokenIds: []uint32{id}, RenderSpecial: &special})
			texts[i] = out.GetText()
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	c.pieces.mu.Lock()
	defer c.pieces.mu.Unlock()
	if len(c.pieces.texts)+len(missing) > maxPieces || c.pieces.texts == nil {
		c.pieces.texts = map[pieceKey]string{}
	}
	for i, id := range missing {
		found[id] = texts[i]
		c.pieces.texts[pieceKey{digest, id}] = texts[i]
	}
	return found, nil
}
