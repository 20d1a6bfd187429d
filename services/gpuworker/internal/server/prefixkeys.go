package server

import (
	"github.com/millrace/millrace/gpuworker/batch"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/prefixkey"
)

// prefixKeys are the keys under which the step loop tells of a request's cached prefixes, the shortest first, given how many
// tokens its prompt has. One that stands for no token is left out.
func prefixKeys(in *pb.GenerateRequest, promptTokens int) []batch.PrefixKey {
	prefixes, total := prefixkey.Of(in)
	keys := make([]batch.PrefixKey, 0, len(prefixes))
	for _, p := range prefixes {
		if tokens := p.Tokens(total, promptTokens); tokens > 0 {
			keys = append(keys, batch.PrefixKey{Key: p.Key, Tokens: tokens})
		}
	}
	return keys
}
