package replay

import (
	"math/rand/v2"
	"slices"
	"time"
)

// Shape of the synthetic trace.
const (
	systems       = 12              // prompts that conversations share
	systemBlocks  = 12              // of the longest
	turnBlocks    = 10              // at most, added by a turn
	meanTurns     = 4               // of a conversation
	meanPause     = 30.0            // s between its turns
	meanArrival   = 0.25            // s between conversations' first turns, times meanTurns
	meanOutput    = 150.0           // tokens
	firstOwnBlock = uint64(1) << 32 // above the blocks of the shared prompts
)

// Synthetic returns a trace of n requests with reuse: conversations that begin with one of a few
// system prompts, and whose every turn repeats the turns before it. The same seed gives the same
// trace.
func Synthetic(n int, seed uint64) []Request {
	random := rand.New(rand.NewPCG(seed, 0x7ace))
	next := firstOwnBlock
	var all []Request
	for begin := 0.0; len(all) < 2*n; begin += random.ExpFloat64() * meanArrival * meanTurns {
		system := random.IntN(systems)
		var blocks []uint64
		for i := range 1 + system*(systemBlocks-1)/(systems-1) {
			blocks = append(blocks, uint64(system*systemBlocks+i))
		}
		arrival := begin
		for more := true; more; more = random.IntN(meanTurns) > 0 {
			for range 1 + random.IntN(turnBlocks) {
				blocks = append(blocks, next)
				next++
			}
			all = append(all, Request{
				Arrival: time.Duration(arrival * 1e9), Prompt: len(blocks) * BlockTokens, Output: 1 + int(random.ExpFloat64()*meanOutput),
				Blocks: slices.Clone(blocks),
			})
			arrival += random.ExpFloat64() * meanPause
		}
	}
	slices.SortStableFunc(all, func(a, b Request) int { return int(a.Arrival - b.Arrival) })
	return all[:n]
}

// Unique returns the trace with the same lengths and times and without any block twice, so that no
// prefix can be reused.
func Unique(requests []Request) []Request {
	all := slices.Clone(requests)
	next := uint64(0)
	for i := range all {
		all[i].Blocks = make([]uint64, len(all[i].Blocks))
		for j := range all[i].Blocks {
			all[i].Blocks[j] = next
			next++
		}
	}
	return all
}

// reusable returns the share of the prompt tokens that one cache of unlimited size would have.
func reusable(requests []Request) float64 {
	seen := map[uint64]bool{}
	var hit, all int
	for _, r := range requests {
		names, known := prefixes(r.Blocks), 0
		for known < len(names) && seen[names[known]] {
			known++
		}
		for _, name := range names[known:] {
			seen[name] = true
		}
		hit += min(known*BlockTokens, r.Prompt-1) // the last token is always computed
		all += r.Prompt
	}
	return float64(hit) / float64(max(all, 1))
}
