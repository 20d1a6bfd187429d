package sametest

import (
	"fmt"

	"github.com/millrace/millrace/gpuworker/engine"
)

// What steps are seen to do.
const (
	SawSteps       = "steps"
	SawTwoInFlight = "steps submitted while another was in flight"
	SawPrevious    = "tokens taken from the step before"
	SawChunks      = "prompts continued in a later step"
	SawMixed       = "steps that compute prompts while sequences decode"
	SawHistory     = "slots that begin with a history"
	SawBlockOut    = "blocks copied out to host memory"
	SawBlockIn     = "blocks copied in from host memory"
	SawBlockCopy   = "blocks copied on the device"
	SawStateSaved  = "segments that save a state"
	SawStateRead   = "segments that begin with a saved state"
	SawStateOut    = "states copied out to host memory"
	SawStateIn     = "states copied in from host memory"
	SawWindowLeft  = "segments without the blocks that left a window"
	SawWindowOut   = "window blocks copied out to host memory"
	SawWindowIn    = "window blocks copied in from host memory"
	SawMasks       = "masks that followed their step"
	SawReplay      = "runs of generated tokens computed together"
	SawForced      = "tokens that a grammar forced"
)

// Events of the loop.
const (
	SawPreempted  = "sequences that lost their place"
	SawRecomputed = "sequences to be computed again"
	SawSwapped    = "sequences to wait in host memory"
	SawRecalled   = "sequences that begin with evicted blocks from host memory"
	SawCached     = "prompt tokens from the prefix cache"
	SawCancelled  = "sequences cancelled in the loop"
	SawFreed      = "cancelled sequences whose place was free again"
)

// What compared answers had.
const (
	SawCompared      = "answers compared"
	SawTokens        = "tokens compared"
	SawScores        = "prompt scores compared"
	SawCut           = "answers compared up to where they were cancelled"
	SawContinuations = "answers of requests with several"
	SawGreedy        = "answers without temperature"
	SawDrawn         = "answers with temperature"
	SawTopK          = "answers with top-k"
	SawTopP          = "answers with top-p"
	SawMinP          = "answers with min-p"
	SawTypical       = "answers with typical-p"
	SawRepetition    = "answers with a repetition penalty"
	SawPresence      = "answers with a presence penalty"
	SawFrequency     = "answers with a frequency penalty"
	SawWindow        = "answers with a window of penalties"
	SawBias          = "answers with bias"
	SawAllowed       = "answers with allowed tokens"
	SawMinTokens     = "answers with min tokens"
	SawCandidates    = "answers with candidates"
	SawGuided        = "answers under a grammar"
	SawStop          = "answers ended by a stop token"
	SawNoToken       = "answers that ended because no token was left"
	SawSalt          = "answers with a salt"
	SawBypass        = "answers that bypass the cache"
	SawPriority      = "answers with a priority"
	SawTenant        = "answers with a tenant"
	SawTurn          = "answers to a prompt that holds an older answer"
	SawRested        = "readers that rested"
	SawDecodeClass   = "prompts computed by the decode kernels"
	SawWide          = "answers of a width of 4096"
	SawLong          = "answers with more keys than 65536"
	SawDescribed     = "answers of models with random layers"
	SawStateful      = "answers of models whose layers carry a state"
	SawGrouped       = "answers with a window group"
	SawExperts       = "answers of models with experts"
)

// SawResumed names an answer that was resumed after the given number of tokens.
func SawResumed(k int) string { return fmt.Sprintf("answers resumed after %2d tokens", k) }

// SawRows names a step that decodes the given number of rows and does nothing else.
func SawRows(n int) string { return fmt.Sprintf("steps of %3d decoding rows", n) }

// Everywhere is what happens on every engine and with every loop, once there are scenarios enough: resumes in every place, and as
// many decoding rows as a bucket holds and its neighbours.
func Everywhere() []string {
	things := []string{
		SawSteps, SawTwoInFlight, SawPrevious, SawChunks, SawMixed, SawReplay, SawForced, SawHistory, SawBlockOut, SawBlockIn, SawBlockCopy,
		SawPreempted, SawRecomputed, SawSwapped, SawCached, SawCancelled, SawFreed, SawCompared, SawTokens, SawScores, SawCut,
		SawContinuations, SawGreedy, SawDrawn, SawTopK, SawTopP, SawMinP, SawTypical, SawRepetition, SawPresence, SawFrequency,
		SawMasks, SawGuided, SawWindow, SawBias, SawAllowed, SawMinTokens, SawCandidates, SawStop, SawNoToken, SawSalt, SawBypass, SawPriority, SawTenant,
		SawTurn, SawRested, SawWide,
	}
	for k := 1; k <= resumes; k++ {
		things = append(things, SawResumed(k))
	}
	for _, n := range rowCounts {
		things = append(things, SawRows(n))
	}
	return things
}

// States is what happens where layers may carry a state.
func States() []string {
	return []string{SawStateSaved, SawStateRead, SawStateOut, SawStateIn, SawStateful}
}

// Windows is what happens where layers have a window.
func Windows() []string { return []string{SawWindowLeft, SawWindowOut, SawWindowIn, SawGrouped} }

// tally counts what of a compared answer there was to get wrong.
func tally(c *Counts, s *scenario, a *actor, i int, alone, got answer) {
	q, p := &a.asks[i], &a.asks[i].params
	resumed := len(a.request.Continuations[i].Resumed)
	for thing, happened := range map[string]bool{
		SawCompared: true, SawCut: got.end == endCancelled, SawContinuations: len(a.asks) > 1,
		SawGreedy: p.Temperature == 0, SawDrawn: p.Temperature > 0, SawTopK: p.TopK > 0, SawTopP: p.TopP < 1, SawMinP: p.MinP > 0,
		SawTypical: p.TypicalP < 1, SawRepetition: p.RepetitionPenalty != 1 && p.PenaltyWindow != 0,
		SawPresence: p.PresencePenalty != 0 && p.PenaltyWindow != 0, SawFrequency: p.FrequencyPenalty != 0 && p.PenaltyWindow != 0,
		SawWindow: p.PenaltyWindow > 0, SawBias: p.BiasIDs != nil, SawAllowed: p.Allowed != nil, SawMinTokens: p.MinTokens > 0,
		SawCandidates: p.TopN > 0, SawStop: len(alone.rows) > 0 && got.end == stopEnd(alone.rows[len(alone.rows)-1].Token),
		SawGuided:  q.expression != "" && len(got.rows) > 0,
		SawNoToken: got.end == endEmpty, SawSalt: a.request.Salt != "", SawBypass: a.request.Bypass,
		SawPriority: a.request.Priority != 0, SawTenant: a.request.Tenant != "", SawTurn: s.kind == kindTurns && a.follows != none,
		SawRested: a.rest != none, SawDecodeClass: q.class == engine.Decode, SawWide: s.kind == kindWide,
		SawLong: len(q.prompt) > 1<<16 && len(got.rows) > 0, SawResumed(resumed): resumed > 0 && len(got.rows) > 0,
		SawDescribed: s.model >= firstDescribed && s.model < firstDescribed+numRandom, SawStateful: models[s.model].stateful(),
		SawGrouped: models[s.model].grouped(), SawExperts: models[s.model].mixes(),
	} {
		if happened {
			c.Add(thing, 1)
		}
	}
	c.Add(SawTokens, uint64(len(got.rows)))
	c.Add(SawScores, uint64(len(got.scores)))
}
