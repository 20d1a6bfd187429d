package replay

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/millrace/millrace/services/bench/internal/trace"
)

// Shape of the synthetic trace.
const (
	systems       = 12              // beginnings that conversations share
	systemBlocks  = 12              // of the longest
	turnBlocks    = 10              // that a turn adds at most
	meanTurns     = 4               // of a conversation
	meanPause     = 30.0            // s between its turns
	meanArrival   = 0.25            // s between conversations' first turns, times meanTurns
	meanOutput    = 150.0           // tokens
	firstOwnBlock = uint64(1) << 32 // above those of the shared beginnings
)

// Synthetic is a trace of n requests with reuse, the same for the same seed: conversations that begin with one of a few system
// prompts and whose every turn repeats the ones before.
func Synthetic(n int, seed uint64) []trace.Request {
	random := rand.New(rand.NewPCG(seed, 0x7ace))
	next := firstOwnBlock
	var all []trace.Request
	for begin := 0.0; len(all) < 2*n; begin += random.ExpFloat64() * meanArrival * meanTurns {
		system := random.IntN(systems)
		var blocks []uint64
		for i := range 1 + system*(systemBlocks-1)/(systems-1) {
			blocks = append(blocks, uint64(system*systemBlocks+i))
		}
		at := begin
		for more := true; more; more = random.IntN(meanTurns) > 0 {
			for range 1 + random.IntN(turnBlocks) {
				blocks = append(blocks, next)
				next++
			}
			all = append(all, trace.Request{
				At: time.Duration(at * 1e9), Prompt: len(blocks) * trace.BlockTokens, Output: 1 + int(random.ExpFloat64()*meanOutput),
				Blocks: slices.Clone(blocks),
			})
			at += random.ExpFloat64() * meanPause
		}
	}
	slices.SortStableFunc(all, func(a, b trace.Request) int { return int(a.At - b.At) })
	return all[:n]
}

// Unique is the trace with no block twice: the same lengths at the same times, and nothing to reuse.
func Unique(requests []trace.Request) []trace.Request {
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

// reusable is which share of the prompts' tokens one cache without an end would have, for orientation.
func reusable(requests []trace.Request) float64 {
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
		hit += min(known*trace.BlockTokens, r.Prompt-1) // the last token is computed all the same
		all += r.Prompt
	}
	return float64(hit) / float64(max(all, 1))
}
