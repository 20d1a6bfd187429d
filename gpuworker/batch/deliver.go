package batch

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
)

// deliver passes the results of a finished step, which took this long on the device, to its
// sequences and retires those that end. A sequence that ended while the step was in flight ignores
// its results.
func (l *Loop) deliver(f *flight, result *engine.StepResult, took time.Duration, now time.Time) {
	samples, scores, hidden := result.Samples, result.Scores, result.Hidden
	width := len(hidden) / max(f.hidden, 1)
	for _, p := range f.parts {
		s := p.seq
		if s.computed < s.promptLength {
			l.counters.prefilled.Add(uint64(p.count))
		}
		s.computed += p.count
		s.inFlight--
		s.steps++
		s.stepTime += took
		rows := scores[:p.scored]
		scores = scores[p.scored:]
		states := hidden[:p.pooled*width]
		hidden = hidden[len(states):]
		var sample *engine.RowResult
		if p.sampled {
			row := samples[0]
			row.Candidates = slices.Clone(row.Candidates)
			sample, samples = &row, samples[1:]
			if p.forced == 0 {
				s.sampling--
			}
		}
		if p.held {
			p.release()
			sample = nil
		}
		switch {
		case s.ended:
			// The row after the last token: it completes the end that the next turn begins with.
			if s.finished && sample != nil && sample.Status == engine.RowOK && s.computed <= len(s.tokens) {
				l.publish(s)
			}
		case s.stream.cancelled.Load():
			if f.number > s.stream.lastStep() {
				l.counters.afterCancel.Add(1)
			}
			l.cancel(s)
		default:
			l.apply(s, rows, hiddenRows{states, p.pooled}, sample, p.forced, now)
		}
		l.departIfDone(s)
	}
}

// hiddenRows are hidden rows of one sequence, in the order of positions.
type hiddenRows struct {
	numbers []float32
	count   int
}

// apply processes the results of one sequence's part of a step. If forced is above 0, the sample is
// dropped for as many forced tokens.
func (l *Loop) apply(s *sequence, scores []engine.RowResult, hidden hiddenRows, sample *engine.RowResult, forced int, now time.Time) {
	err := s.rowError(scores, sample)
	if forced > 0 && errors.Is(err, ErrNoToken) {
		err = nil // it sampled under a mask of ones
	}
	if err == nil {
		err = s.pool.add(hidden.numbers, hidden.count)
	}
	if err != nil {
		// A NaN that follows from the ids alone would appear in every sequence with the same
		// ids, and cached blocks would do no harm. But a NaN may also come from elsewhere: in the
		// kernels it spreads to earlier positions of the same tile (0 * NaN is NaN), and hardware
		// may fail once. Blocks of earlier steps are in the prefix cache already, and every hit
		// would keep a bad one alive. So they are forgotten.
		if errors.Is(err, ErrBadLogits) {
			l.cache.Forget(s.table)
		}
		s.stream.end(err)
		l.retire(s)
		return
	}
	l.charge(s)
	l.publish(s)
	l.sharePrompt(s)
	l.slide(s)
	if l.advance(s, scores, sample, forced, now) {
		l.retire(s)
	}
}

// rowError returns an error if a row of the sequence has NaN logits or no token left to sample.
func (s *sequence) rowError(scores []engine.RowResult, sample *engine.RowResult) error {
	for i := range scores {
		if scores[i].Status != engine.RowOK && len(s.request.Choices) > 0 {
			return fmt.Errorf("%w: behind the prompt", ErrBadLogits)
		}
		if scores[i].Status != engine.RowOK {
			return fmt.Errorf("%w: scoring prompt token %d", ErrBadLogits, s.scored+1+i)
		}
	}
	switch {
	case sample == nil || sample.Status == engine.RowOK:
		return nil
	case sample.Status == engine.RowEmpty:
		return fmt.Errorf("%w: at position %d", ErrNoToken, sample.Position)
	}
	return fmt.Errorf("%w: at position %d", ErrBadLogits, sample.Position)
}

// advance sends new scores, progress and tokens to the stream and reports whether the sequence
// ended.
func (l *Loop) advance(s *sequence, scores []engine.RowResult, sample *engine.RowResult, forced int, now time.Time) bool {
	if len(s.request.Choices) > 0 {
		for i := range scores {
			s.choices = append(s.choices, scores[i].Logprob)
		}
	} else if len(scores) > 0 {
		copied := slices.Clone(scores)
		for i := range copied {
			copied[i].Candidates = slices.Clone(copied[i].Candidates)
		}
		s.scored += len(copied)
		s.emit(Event{Scored: copied}, now)
	}
	if done := min(s.computed, s.promptLength); s.request.Progress && done > s.progressSent {
		s.progressSent = done
		s.emit(Event{Prefilled: done}, now)
	}
	if sample == nil {
		if s.request.MaxTokens == 0 && s.computed == s.promptLength {
			s.finish(Length, 0, now)
			return true
		}
		return false
	}
	if forced > 0 {
		return l.sendForced(s, sample, forced, now)
	}
	l.sampled(s, now)
	s.push(sample.Token)
	l.counters.generated.Add(1)
	s.emit(Event{Token: sample}, now)
	if slices.Contains(s.request.StopIDs, sample.Token) {
		s.finish(Stop, sample.Token, now)
		return true
	}
	if s.generated() >= s.request.MaxTokens {
		s.finish(Length, 0, now)
		return true
	}
	if !s.guide.Free() {
		s.unfollowed = append(s.unfollowed, sample.Token)
		l.prepareMask(s)
	}
	return false
}

// sampled records when a sequence got a token, for TTFT and inter-token latency.
func (l *Loop) sampled(s *sequence, now time.Time) {
	o := l.cfg.Observer
	switch {
	case s.firstToken.IsZero():
		s.firstToken = now
		if o != nil {
			o.FirstToken(now.Sub(s.arrived))
		}
	case o != nil:
		o.NextToken(now.Sub(s.lastToken))
	}
	s.lastToken = now
}
