package model

import (
	"context"
	"sync"
)

// job is a load that any number of callers wait for.
type job struct {
	options Options
	ctx     context.Context
	end     context.CancelCauseFunc // of ctx: ends the load

	mu       sync.Mutex
	progress Progress
	changed  chan struct{} // closed and replaced at every report
	done     bool
	inst     *Instance
	err      error
}

func newJob(ctx context.Context, o Options) *job {
	j := &job{options: o, changed: make(chan struct{})}
	j.ctx, j.end = context.WithCancelCause(ctx)
	return j
}

func (j *job) report(p Progress) { j.update(func() { j.progress = p }) }

func (j *job) finish(inst *Instance, err error) {
	j.update(func() { j.done, j.inst, j.err = true, inst, err })
}

func (j *job) update(change func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	change()
	close(j.changed)
	j.changed = make(chan struct{})
}

func (j *job) latest() Progress {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.progress
}

// wait passes every state that it sees to progress, which may be nil, until the load has ended or ctx has.
func (j *job) wait(ctx context.Context, progress func(Progress)) (*Instance, error) {
	var seen Progress
	for {
		j.mu.Lock()
		now, done, changed, inst, err := j.progress, j.done, j.changed, j.inst, j.err
		j.mu.Unlock()
		if progress != nil && now != seen {
			progress(now)
			seen = now
		}
		if done {
			return inst, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
