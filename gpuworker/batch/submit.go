package batch

import (
	"fmt"

	"github.com/millrace/millrace/gpuworker/engine"
)

// capacity is the longest sequence the cache holds, in tokens.
func (l *Loop) capacity() int {
	return min(l.cfg.Context, l.cfg.Runner.KVBlocks*l.cfg.Runner.BlockSize)
}

// Fit is how many tokens may follow a prompt of so many, of those wanted. ErrTooLong refuses a prompt that does not fit, or that
// leaves no room where some are wanted. Whoever must know a request's length asks here.
func (l *Loop) Fit(prompt, wanted int) (most int, err error) {
	return Fit(prompt, wanted, l.capacity())
}

// Fit is Loop.Fit for sequences of at most context tokens.
func Fit(prompt, wanted, context int) (most int, err error) {
	room := context - prompt
	switch {
	case room < 0:
		return 0, fmt.Errorf("%w: it has %d tokens; this model serves at most %d", ErrTooLong, prompt, context)
	case room == 0 && wanted > 0:
		return 0, fmt.Errorf("%w: it has %d tokens, and %d fit with room for an answer", ErrTooLong, prompt, context-1)
	}
	return min(wanted, room), nil
}

// Submit takes a request into the queue, whole or not at all, and gives a stream for each of its continuations, in their order.
// ErrTooLong, ErrFull and ErrClosed refuse it.
func (l *Loop) Submit(r Request) ([]*Stream, error) {
	n := len(r.Prompt)
	switch {
	case n == 0:
		return nil, fmt.Errorf("%w: the prompt is empty", engine.ErrInvalid)
	case len(r.Continuations) == 0:
		return nil, fmt.Errorf("%w: the request has no continuation", engine.ErrInvalid)
	}
	var err error
	if r.MaxTokens, err = l.Fit(n, r.MaxTokens); err != nil {
		return nil, err
	}
	for _, c := range r.Continuations {
		if k := len(c.Resumed); k > 0 && k >= r.MaxTokens {
			return nil, fmt.Errorf("%w: continuation %d has %d tokens already, of at most %d", engine.ErrInvalid, c.OutputIndex, k,
				r.MaxTokens)
		}
	}
	count := len(r.Continuations)
	sequences, streams := make([]*sequence, count), make([]*Stream, count)
	var shared *family
	if count > 1 {
		shared = &family{coming: count}
	}
	for i := range sequences {
		sequences[i] = newSequence(l, r, i)
		sequences[i].family = shared
		streams[i] = sequences[i].stream
	}
	l.mail.Lock()
	defer l.mail.Unlock()
	if l.mail.closed != nil {
		return nil, l.mail.closed
	}
	if l.mail.queued+count > l.cfg.MaxWaiting {
		return nil, fmt.Errorf("%w: %d wait, at most %d may, and this one has %d continuations", ErrFull, l.mail.queued, l.cfg.MaxWaiting,
			count)
	}
	for _, s := range sequences {
		l.mail.ages++
		s.age = l.mail.ages
		l.counters.waitingPrefill.Add(int64(len(s.tokens)))
	}
	l.counters.oldest.CompareAndSwap(0, max(int64(sequences[0].arrived.Sub(l.made)), 1))
	l.mail.queued += count
	l.mail.arrivals = append(l.mail.arrivals, sequences...)
	l.counters.waiting.Add(int64(count))
	l.nudge()
	return streams, nil
}
