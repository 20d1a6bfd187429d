package batch

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
)

// deliver hands the results of a step that has ended, and took so long on the device, to its sequences and takes out those that end.
// Sequences that ended while the step was in flight get nothing of it.
func (l *Loop) deliver(f *flight, result *engine.StepResult, took time.Duration, now time.Time) {
	samples, scores := result.Samples, result.Scores
	for _, p := range f.parts {
		s := p.seq
		if s.computed < s.promptLength {
			l.counters.prefilled.Add(uint64(p.count))
		}
		s.computed += p.count
		s.flying--
		s.steps++
		s.stepTime += took
		rows := scores[:p.scored]
		scores = scores[p.scored:]
		var sample *engine.RowResult
		if p.sampled {
			row := samples[0]
			row.Candidates = slices.Clone(row.Candidates)
			sample, samples = &row, samples[1:]
			s.sampling--
		}
		switch {
		case s.over:
		case s.stream.cancelled.Load():
			if f.number > s.stream.lastStep() {
				l.counters.afterCancel.Add(1)
			}
			l.cancel(s)
		default:
			l.take(s, rows, sample, now)
		}
		l.landed(s)
	}
}

// take gives a sequence the results of its part of a step.
func (l *Loop) take(s *sequence, scores []engine.RowResult, sample *engine.RowResult, now time.Time) {
	if err := s.fault(scores, sample); err != nil {
		// The blocks of earlier steps are findable already. What is no number by the ids alone is so for everybody who computes the same
		// ids, and might stay. But in the kernels a position that is no number may reach those before it in the same tile (0 * NaN), and
		// hardware may fail once: then others would begin with what they would not compute themselves, and keep it in the cache by using it.
		if errors.Is(err, ErrBadLogits) {
			l.cache.Forget(s.table)
		}
		s.stream.end(err)
		l.retire(s)
		return
	}
	l.charge(s)
	l.remember(s)
	l.lend(s)
	if l.advance(s, scores, sample, now) {
		l.retire(s)
	}
}

// fault says what is wrong with the rows of a sequence.
func (s *sequence) fault(scores []engine.RowResult, sample *engine.RowResult) error {
	for i := range scores {
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

// advance tells a sequence's stream what is new and says whether it has ended.
func (l *Loop) advance(s *sequence, scores []engine.RowResult, sample *engine.RowResult, now time.Time) bool {
	if len(scores) > 0 {
		own := slices.Clone(scores)
		for i := range own {
			own[i].Candidates = slices.Clone(own[i].Candidates)
		}
		s.scored += len(own)
		s.emit(Event{Scored: own}, now)
	}
	if done := min(s.computed, s.promptLength); s.request.Progress && done > s.told {
		s.told = done
		s.emit(Event{Prefilled: done}, now)
	}
	if sample == nil {
		if s.request.MaxTokens == 0 && s.computed == s.promptLength {
			s.finish(Length, 0, now)
			return true
		}
		return false
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
	return false
}

// sampled notes when a sequence got a token.
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
