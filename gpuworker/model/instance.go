package model

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/template"
	"github.com/millrace/millrace/gpuworker/tokenizer"
)

// State of a model on this worker.
type State int

// States, in the order a model goes through them.
const (
	Loading State = iota + 1
	Ready
	Draining
	Failed
)

// Instance is a loaded model. Its exported fields do not change.
type Instance struct {
	Name      string
	Digest    engine.Digest
	Facts     Facts
	Context   int // longest sequence it serves
	Tokenizer *tokenizer.Tokenizer
	Template  *template.Template
	// TemplateProblem says why a chat template that the file has cannot be used.
	TemplateProblem error
	Named           map[string]NamedTemplate
	Loop            *batch.Loop
	Runner          engine.RunnerConfig
	ClassID         string
	// Defaults are what unset knobs of a request have; nil: those of the contract.
	Defaults    *Sampling
	DeviceBytes uint64

	model   engine.Model
	runner  engine.Runner
	tensors []residency
	sizes   []uint64 // resident bytes of every tensor, in the order of binding
	weights uint64   // resident bytes of those bound
	cache   uint64   // bytes of the runner
	// oneClass is engine.DeviceInfo's, hostBlock the bytes of host memory that a KV block takes.
	oneClass  bool
	hostBlock uint64
	grain     int                     // engine.RunnerCost.PrefillGrain
	stop      context.CancelCauseFunc // ends the loop
	ended     chan struct{}           // closed when the loop has ended
	held      atomic.Uint64           // bytes of holds

	closing sync.Mutex // held by a load, and then by a close
	holds   holdings   // guarded by closing

	mu struct {
		sync.Mutex
		state    State
		problem  error
		users    int           // requests and residency checks
		requests int           // of users, those that keep it from being idle
		used     time.Time     // end of the last request, or of the load
		pinned   bool          // whether it stays until it is told to go
		idle     chan struct{} // closed when users reaches 0 while draining
		verified time.Time     // end of the last complete pass
	}
}

// residency is a tensor and what its bytes must hash to.
type residency struct {
	name   string
	digest engine.Digest
}

// acquire holds the instance, for a request or for a check, which does not count as use.
func (i *Instance) acquire(request bool) (release func(), err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch i.mu.state {
	case Draining:
		return nil, fmt.Errorf("%w: %q", ErrDraining, i.Name)
	case Failed:
		return nil, fmt.Errorf("%w: %q: %w", ErrFailed, i.Name, i.mu.problem)
	case Loading, Ready:
	}
	i.mu.users++
	if request {
		i.mu.requests++
	}
	return sync.OnceFunc(func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.mu.users--
		if request {
			i.mu.requests--
			i.mu.used = time.Now()
		}
		if i.mu.users == 0 && i.mu.idle != nil {
			close(i.mu.idle)
			i.mu.idle = nil
		}
	}), nil
}

// drain refuses new users and returns a channel that is closed once the present ones have gone.
func (i *Instance) drain() <-chan struct{} {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.mu.state != Failed {
		i.mu.state = Draining
	}
	if i.mu.idle == nil {
		i.mu.idle = make(chan struct{})
		if i.mu.users == 0 {
			idle := i.mu.idle
			i.mu.idle = nil
			close(idle)
			return idle
		}
	}
	return i.mu.idle
}

// fail takes the model out of service; its running requests end with the problem.
func (i *Instance) fail(problem error) {
	i.mu.Lock()
	if i.mu.state == Failed {
		i.mu.Unlock()
		return
	}
	i.mu.state, i.mu.problem = Failed, problem
	i.mu.Unlock()
	i.stop(fmt.Errorf("%w: %q: %w", ErrFailed, i.Name, problem))
}

// leaving says whether the instance takes no more users.
func (i *Instance) leaving() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.mu.state != Ready
}

// close ends the loop and gives the device's memory back. Further calls wait for that; where the device refused, they try
// again. refused is how many frees it refused.
func (i *Instance) close(cause error) (refused int, err error) {
	i.stop(cause)
	<-i.ended
	i.closing.Lock()
	defer i.closing.Unlock()
	return i.release()
}

// release gives back what is held. The caller holds closing.
func (i *Instance) release() (refused int, err error) {
	i.closeTemplates()
	if refused, err = i.holds.release(); err != nil {
		err = fmt.Errorf("model %q holds %d bytes, unload it to try again: %w: %w", i.Name, i.holds.bytes(), ErrHeld, err)
	}
	i.held.Store(i.holds.bytes())
	return refused, err
}
