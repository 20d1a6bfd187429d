package sametest

import (
	"fmt"
	"math"

	"github.com/millrace/millrace/gpuworker/engine"
)

// answer is what an ask gave, candidates copied.
type answer struct {
	rows   []engine.RowResult // of generated tokens; those that may be forced have no logprobs
	scores []engine.RowResult // of prompt tokens, from the second on
	end    string             // why it ended
}

// Ends of an answer; endStop is followed by the id.
const (
	endLength    = "its length"
	endStop      = "stop token"
	endNaN       = "logits that are not numbers"
	endEmpty     = "no token to choose from"
	endCancelled = "cancelled"
)

// tokens are the ids generated.
func (a *answer) tokens() []int32 {
	out := make([]int32, len(a.rows))
	for i := range a.rows {
		out[i] = a.rows[i].Token
	}
	return out
}

// differ returns where a reader's answer differs from that of the ask alone after its first `resumed` tokens; nil: in no bit. A reader
// that cancelled may have got any beginning of it, and one whose request failed any beginning of its scores.
func (a *answer) differ(got answer, resumed int) error {
	rows := a.rows[resumed:]
	if err := differ("generated token", resumed, rows, got.rows); err != nil {
		return err
	}
	if err := differ("score of prompt token", 1, a.scores, got.scores); err != nil {
		return err
	}
	if got.end == endCancelled {
		return nil
	}
	failed := got.end == endNaN || got.end == endEmpty
	if a.end != got.end || len(got.rows) != len(rows) || len(got.scores) != len(a.scores) && !failed {
		return fmt.Errorf("alone it ends with %s after %d tokens and %d scores, here with %s after %d and %d", a.end, len(rows),
			len(a.scores), got.end, len(got.rows), len(got.scores))
	}
	return nil
}

// differ compares as many rows as got has, which may be fewer than want has and not more.
func differ(what string, first int, want, got []engine.RowResult) error {
	if len(got) > len(want) {
		return fmt.Errorf("%s %d: alone there is none, here %s", what, first+len(want), show(got[len(want)]))
	}
	for i := range got {
		if !same(want[i], got[i]) {
			return fmt.Errorf("%s %d: alone %s, here %s", what, first+i, show(want[i]), show(got[i]))
		}
	}
	return nil
}

// same compares everything but the slot, which is the loop's choice.
func same(a, b engine.RowResult) bool {
	if a.Position != b.Position || a.Status != b.Status || a.Token != b.Token || !sameBits(a.Logprob, b.Logprob) ||
		a.Rank != b.Rank || len(a.Candidates) != len(b.Candidates) {
		return false
	}
	for i, c := range a.Candidates {
		if c.Token != b.Candidates[i].Token || !sameBits(c.Logprob, b.Candidates[i].Logprob) {
			return false
		}
	}
	return true
}

func sameBits(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }

// show is a row with the bits of its logprobs.
func show(r engine.RowResult) string {
	s := fmt.Sprintf("%d at position %d, %v (%08x), rank %d", r.Token, r.Position, r.Logprob, math.Float32bits(r.Logprob), r.Rank)
	for _, c := range r.Candidates {
		s += fmt.Sprintf(" %d:%08x", c.Token, math.Float32bits(c.Logprob))
	}
	return s
}
