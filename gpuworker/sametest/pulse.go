package sametest

import (
	"context"
	"sync"
)

// pulse is the time of a scenario: it counts the events that readers have had. Whoever waits for a later time goes on at once
// when no participant is left that could cause it.
type pulse struct {
	mu     sync.Mutex
	events int
	active int           // readers and actors that may still bring an event
	beat   chan struct{} // closed and replaced when either changes
}

func newPulse(active int) *pulse { return &pulse{active: active, beat: make(chan struct{})} }

// tick counts events, and participants that join or leave.
func (p *pulse) tick(events, active int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events += events
	p.active += active
	close(p.beat)
	p.beat = make(chan struct{})
}

// wait returns at a time, or as soon as no participant is active, or with the context's cause. The waiter is active afterwards.
func (p *pulse) wait(ctx context.Context, events int) error {
	for {
		p.mu.Lock()
		if p.events >= events || p.active == 0 {
			p.active++
			p.mu.Unlock()
			return nil
		}
		beat := p.beat
		p.mu.Unlock()
		select {
		case <-beat:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
