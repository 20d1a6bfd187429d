package replay

import (
	"time"

	"github.com/millrace/millrace/services/bench/internal/trace"
)

// job is one call of the replay.
type job struct {
	index  int
	at     time.Duration // since the beginning
	of     trace.Request
	ids    []uint32 // of the prompt; made when it is sent
	names  []uint64 // of its beginnings, one for each block
	block  int      // tokens of a whole block
	output int      // tokens, >= 1
}

// jobs are the calls of a trace.
func jobs(requests []trace.Request, s Scale) []job {
	all := make([]job, len(requests))
	for i, r := range requests {
		all[i] = job{index: i, at: s.time(r.At), of: r, names: prefixes(r.Blocks), block: s.block(), output: s.tokens(r.Output)}
	}
	return all
}
