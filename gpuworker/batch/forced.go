package batch

import (
	"math"
	"slices"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/guide"
)

// A mask with one bit decides its token: whatever the logits are, the sampler returns that id. Such a token
// is forced. The loop appends forced tokens without sampling, and a chain of them is computed in one step:
//
//	one by one   sample a | sample b | sample c | sample d     b and c are forced
//	forced       sample a |         (row a)       rows b c, sample d
//
// When the loop makes the mask of a step in flight and finds one bit, it walks the grammar on from that
// token for as long as masks have one bit. The whole chain is then known before its first row is
// computed, so the next step has it as one segment of given ids, as if the sequence were resumed. The row
// in flight samples a token that is dropped. Random numbers follow from positions, so skipping a sample
// changes no later one, and the engine counts given ids for penalties as it counts sampled ones.
//
// The tokens of a chain reach the stream when the row that would have sampled the first of them has
// ended, so that no token precedes the prompt's scores and progress, or a failure of that row.

const (
	// maxForced bounds the tokens of a chain, and so the events that a stream buffers beyond its limit. A
	// longer chain goes on from the next step.
	maxForced = 32
	// forcedSteps are the steps of walks that the chains of a step may make. The mask that ends a chain is
	// kept for the row behind it, so nearly none of them is extra work.
	forcedSteps = 1 << 16
)

// mayForce reports whether the sampler would return id under a mask of this id alone.
func (s *sequence) mayForce(id int32) bool {
	p := &s.request.Params
	if s.request.Logprobs || p.TopN > 0 { // the logits of its row are wanted
		return false
	}
	if p.Allowed != nil && !slices.Contains(p.Allowed, id) {
		return false
	}
	if s.generated() < int(p.MinTokens) && slices.Contains(p.Suppressed, id) {
		return false
	}
	bias := slices.Index(p.BiasIDs, id)
	return bias < 0 || !math.IsInf(float64(p.BiasValues[bias]), -1)
}

// force appends the chain that begins with the only token of the mask of p, if there is one. The mask's state
// is in s.guide already. It returns false, and changes nothing, if the token must be sampled.
func (l *Loop) force(p *part, id int32, only bool, steps *int) bool {
	s := p.seq
	if !only || l.cfg.sampleForced || !s.mayForce(id) {
		return false
	}
	s.sampling--
	for only && p.forced < maxForced && s.mayForce(id) {
		s.push(id)
		p.forced++
		if s.complete = slices.Contains(s.request.StopIDs, id); s.complete || s.generated() >= s.request.MaxTokens {
			s.complete = true
			break
		}
		s.unfollowed = append(s.unfollowed, id)
		id, only = l.followForced(s, steps)
	}
	s.forced, s.unsent = p.forced-1, p.forced
	if !s.complete {
		l.prepareMask(s)
	}
	return true
}

// followForced makes the mask behind the tokens of s and returns its only token. If the mask has several, or is not
// done within the steps, its job stays for the next row of s.
func (l *Loop) followForced(s *sequence, steps *int) (id int32, only bool) {
	j := s.maskJob()
	if !j.done.Load() && !j.try(steps) {
		return 0, false
	}
	state, err := j.walk.Result()
	if err != nil {
		return 0, false
	}
	if id, only = j.walk.Only(); !only || !s.mayForce(id) {
		return 0, false
	}
	s.followed(state)
	return id, true
}

// followed takes the state behind all tokens from the job of its mask.
func (s *sequence) followed(state guide.State) {
	m := &s.masking
	s.guide, s.unfollowed, m.spent, m.job = state, s.unfollowed[:0], m.spent/2+m.job.walk.Steps(), nil
}

// sendForced delivers the forced tokens of a part whose row, which samples the first of them, has ended. It reports
// whether the sequence ended.
func (l *Loop) sendForced(s *sequence, first *engine.RowResult, count int, now time.Time) bool {
	s.unsent = 0
	l.counters.forced.Add(uint64(count))
	for i := range count {
		row := &engine.RowResult{Slot: first.Slot, Position: first.Position + int32(i)}
		row.Token = s.tokens[row.Position]
		l.sampled(s, now)
		l.counters.generated.Add(1)
		s.emit(Event{Token: row}, now)
	}
	if !s.complete {
		return false
	}
	if last := s.tokens[len(s.tokens)-1]; slices.Contains(s.request.StopIDs, last) {
		s.finish(Stop, last, now)
	} else {
		s.finish(Length, 0, now)
	}
	return true
}
