package batch

import (
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
)

// deliver hands the results of the step just done to its sequences and takes out those that end.
func (l *Loop) deliver(result *engine.StepResult) {
	now := time.Now()
	samples, scores := result.Samples, result.Scores
	for _, p := range l.plan.parts {
		s := p.seq
		if s.computed < s.promptLength {
			l.counters.prefilled.Add(uint64(p.count))
		}
		s.computed += p.count
		rows := scores[:p.scored]
		scores = scores[p.scored:]
		var sample *engine.RowResult
		if p.sampled {
			row := samples[0]
			row.Candidates = slices.Clone(row.Candidates)
			sample, samples = &row, samples[1:]
		}
		if s.stream.cancelled.Load() {
			if s.stream.outlived() > 1 { // the one planned when it was cancelled
				l.counters.afterCancel.Add(1)
			}
			continue // reaped before the next step
		}
		if l.advance(s, rows, sample, now) {
			l.retire(s)
		}
	}
}

// advance gives a sequence its results and says whether it has ended.
func (l *Loop) advance(s *sequence, scores []engine.RowResult, sample *engine.RowResult, now time.Time) bool {
	if len(scores) > 0 {
		own := slices.Clone(scores)
		for i := range own {
			if own[i].Status != engine.RowOK {
				s.stream.end(fmt.Errorf("%w: scoring prompt token %d", ErrBadLogits, s.scored+1+i))
				return true
			}
			own[i].Candidates = slices.Clone(own[i].Candidates)
		}
		s.scored += len(own)
		s.emit(Event{Scored: own}, now)
	}
	if s.request.Progress && s.generated() == 0 {
		s.emit(Event{Prefilled: min(s.computed, s.promptLength)}, now)
	}
	if sample == nil {
		if s.request.MaxTokens == 0 && s.computed == s.promptLength {
			s.finish(Length, 0, now)
			return true
		}
		return false
	}
	switch sample.Status {
	case engine.RowNaN:
		s.stream.end(fmt.Errorf("%w: at position %d", ErrBadLogits, sample.Position))
		return true
	case engine.RowEmpty:
		s.stream.end(fmt.Errorf("%w: at position %d", ErrNoToken, sample.Position))
		return true
	case engine.RowOK:
	}
	if s.firstToken.IsZero() {
		s.firstToken = now
	}
	s.tokens = append(s.tokens, sample.Token)
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

// measure learns from the step just done how long steps take.
func (l *Loop) measure(took time.Duration) {
	l.counters.steps.Add(1)
	l.counters.stepEnd.Store(max(int64(time.Since(l.made)), 1))
	longest := time.Duration(l.counters.longest.Load())
	l.counters.longest.Store(int64(max(took, longest-longest/64)))
	of := &l.alone
	if l.plan.decoding > 0 {
		of = &l.shared
	}
	// Its tokens without those of sequences that decode, which take their part of the time: what is left fits.
	if prefill := l.plan.tokens - l.plan.decoding; prefill > 0 {
		of.learn(prefill, took, l.cfg.Runner.MaxBatchedTokens-l.plan.decoding)
	}
}
