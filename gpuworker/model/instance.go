package model

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/embed"
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
	Context   int // longest sequence that it serves
	Tokenizer *tokenizer.Tokenizer
	Template  *template.Template
	// TemplateProblem is why the file's chat template cannot be used.
	TemplateProblem error
	Named           map[string]NamedTemplate
	Reranker        *embed.Reranker // nil: the model cannot rerank
	Dense           []arch.Dense    // layers after the pooling
	Loop            *batch.Loop
	Runner          engine.RunnerConfig
	ClassID         string
	// Defaults are the values of a request's unset sampling parameters; nil: those of the API.
	Defaults    *Sampling
	DeviceBytes uint64

	grammars *grammars // nil without a tokenizer
	model    engine.Model
	runner   engine.Runner
	tensors  []tensorDigest
	sizes    []uint64 // resident bytes of every tensor, in binding order
	weights  uint64   // resident bytes of bound tensors
	cache    uint64   // bytes of the runner
	// oneClass is engine.DeviceInfo.OneClass, hostBlock the host memory of a KV block in bytes,
	// hostWindow that of a block of the window group, and hostState that of a state, 0 if no layer
	// carries one.
	oneClass   bool
	hostBlock  uint64
	hostWindow uint64
	hostState  uint64
	swap       hostPlaces              // of the runner's host memory, those of preempted sequences
	tier       hostPlaces              // and those of the host tier of the prefix cache
	hostRate   float64                 // measured, in bytes a second; 0: unknown
	window     int                     // of the window group, in positions; 0: the runner has none
	states     bool                    // layers carry one
	grain      int                     // engine.RunnerCost.PrefillGrain
	stop       context.CancelCauseFunc // ends the loop
	ended      chan struct{}           // closed when the loop has ended
	held       atomic.Uint64           // bytes of resources

	// resources is locked by a load, and then by each close.
	resources struct {
		sync.Mutex
		holdings
	}

	mu struct {
		sync.Mutex
		state    State
		problem  error
		users    int           // requests and residency checks
		requests int           // users that count as use
		used     time.Time     // end of the last request, or of the load
		pinned   bool          // only Unload unloads it
		idle     chan struct{} // closed when users reaches 0 while draining
		verified time.Time     // end of the last complete residency check
	}
}

// tensorDigest is a tensor and the digest that its bytes must have.
type tensorDigest struct {
	name   string
	digest engine.Digest
}

// replaceModel replaces the model, which has no tensors yet, by one of another description.
func (i *Instance) replaceModel(device engine.Device, desc engine.ModelDesc) error {
	m, err := device.NewModel(desc)
	if err != nil {
		return err
	}
	old := i.model
	i.model = m
	return old.Close()
}

// acquire holds the instance for a request, or for a check, which does not count as use.
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

// drain refuses new users and returns a channel that is closed when the present ones have left.
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

// fail takes the model out of service. Its running requests end with the problem.
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

// retiring reports whether the instance accepts no more users.
func (i *Instance) retiring() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.mu.state != Ready
}

// close ends the loop and frees the device memory. Concurrent calls wait. If the device refused, a
// later call tries again. refused is how many frees it refused.
func (i *Instance) close(cause error) (refused int, err error) {
	i.stop(cause)
	<-i.ended
	i.resources.Lock()
	defer i.resources.Unlock()
	return i.release()
}

// release frees the resources. The caller holds the resources lock.
func (i *Instance) release() (refused int, err error) {
	i.closeTemplates()
	if refused, err = i.resources.release(); err != nil {
		err = fmt.Errorf("model %q holds %d bytes, unload it to try again: %w: %w", i.Name, i.resources.bytes(), ErrHeld, err)
	}
	i.held.Store(i.resources.bytes())
	return refused, err
}

// Fault injects a fault into the engine, for tests.
func (i *Instance) Fault(f engine.Fault, index int32, value uint64) error {
	faulter, ok := i.runner.(engine.Faulter)
	if !ok {
		return fmt.Errorf("%w: faults", engine.ErrUnsupported)
	}
	return faulter.Fault(f, index, value)
}

// FlipBit flips one bit of a tensor's resident bytes and returns the tensor's name, for tests.
func (i *Instance) FlipBit(tensor int, bit uint64) (name string, err error) {
	flipper, ok := i.model.(engine.BitFlipper)
	if !ok {
		return "", fmt.Errorf("%w: faults", engine.ErrUnsupported)
	}
	return i.tensors[tensor].name, flipper.FlipBit(tensor, bit)
}
