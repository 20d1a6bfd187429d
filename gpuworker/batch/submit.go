package batch

import (
	"fmt"

	"github.com/millrace/millrace/gpuworker/engine"
)

// capacity is the longest sequence in tokens: limited by the context and by the KV cache.
func (l *Loop) capacity() int {
	c := &l.cfg.Runner
	most := min(l.cfg.Context, c.KVBlocks*c.BlockSize)
	if l.cfg.Window > 0 && c.WindowBlocks < leastWindow(l.cfg.Window, c.BlockSize) {
		most = min(most, c.WindowBlocks*c.BlockSize) // its window never moves
	}
	return most
}

// Fit returns how many of the wanted tokens may follow a prompt of this length. It returns
// ErrTooLong if the prompt does not fit, or leaves no room although tokens are wanted.
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

// Submit queues a request, whole or not at all, and returns one stream for each continuation, in
// order. It returns ErrTooLong, ErrFull or ErrClosed if it refuses the request.
func (l *Loop) Submit(r Request) ([]*Stream, error) {
	n := len(r.Prompt)
	switch {
	case n == 0:
		return nil, fmt.Errorf("%w: the prompt is empty", engine.ErrInvalid)
	case len(r.Continuations) == 0:
		return nil, fmt.Errorf("%w: the request has no continuation", engine.ErrInvalid)
	}
	if err := l.checkPooled(&r); err != nil {
		return nil, err
	}
	if err := l.checkGuided(&r); err != nil {
		return nil, err
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
	var group *sequenceGroup
	if count > 1 {
		group = &sequenceGroup{pending: count}
	}
	for i := range sequences {
		sequences[i] = newSequence(l, r, i)
		sequences[i].group = group
		streams[i] = sequences[i].stream
	}
	l.inbox.Lock()
	defer l.inbox.Unlock()
	if l.inbox.closed != nil {
		return nil, l.inbox.closed
	}
	if l.inbox.queued+count > l.cfg.MaxWaiting {
		return nil, fmt.Errorf("%w: %d wait, at most %d may, and this one has %d continuations", ErrFull, l.inbox.queued, l.cfg.MaxWaiting,
			count)
	}
	for _, s := range sequences {
		l.inbox.ages++
		s.age = l.inbox.ages
		l.counters.waitingPrefill.Add(int64(len(s.tokens)))
	}
	l.counters.oldest.CompareAndSwap(0, max(int64(sequences[0].arrived.Sub(l.created)), 1))
	l.inbox.queued += count
	l.inbox.arrivals = append(l.inbox.arrivals, sequences...)
	l.counters.waiting.Add(int64(count))
	l.nudge()
	return streams, nil
}
