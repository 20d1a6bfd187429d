package model

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/semaphore"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
)

// Manager owns the models of one device. Its methods may be called from any goroutine.
type Manager struct {
	cfg     Config
	device  engine.Device
	catalog *catalog
	logger  hclog.Logger
	ctx     context.Context // of loads, which outlive their callers
	stop    context.CancelCauseFunc
	work    sync.WaitGroup
	turn    *semaphore.Weighted // held by the load that reads and uploads: one at a time
	refused atomic.Uint64       // frees of models' memory that the device refused
	leaked  atomic.Int64        // buffers of loads among them, which nobody uses any more
	swap    swapSpace

	loadedCount, failedCount atomic.Uint64 // loads that have ended
	unloadedCount            atomic.Uint64

	mu struct {
		sync.Mutex
		loads     map[string]*job
		instances map[string]*Instance
		stopped   bool
	}
}

// NewManager returns a manager of a device that it does not close. Close ends it.
func NewManager(cfg Config, device engine.Device, logger hclog.Logger) *Manager {
	cfg.setDefaults()
	m := &Manager{
		cfg: cfg, device: device, catalog: newCatalog(cfg.Dir), logger: logger.Named("model"), turn: semaphore.NewWeighted(1),
	}
	m.swap.left = uint64(max(m.swapSpace(), 0))
	m.ctx, m.stop = context.WithCancelCause(context.Background())
	m.mu.loads, m.mu.instances = map[string]*job{}, map[string]*Instance{}
	m.work.Go(func() { m.watch(m.ctx) })
	if cfg.IdleUnload > 0 {
		m.work.Go(func() { m.reap(m.ctx) })
	}
	return m
}

// swapSpace is what Config.SwapSpace says, or the device's default.
func (m *Manager) swapSpace() int64 {
	if m.cfg.SwapSpace != 0 {
		return m.cfg.SwapSpace
	}
	info, err := m.device.Info()
	if err != nil { // such a device loads nothing
		return 0
	}
	return DefaultSwapSpace(info)
}

// Device is the device that the models are on.
func (m *Manager) Device() engine.Device { return m.device }

// VerifyInterval is the time wanted between residency checks of a model; 0: there are none.
func (m *Manager) VerifyInterval() time.Duration { return max(m.cfg.VerifyInterval, 0) }

// Leaked is how many buffers of loads that are over are on the device still, because it refuses to free them. Their models
// are listed as failed, and unloading those tries again.
func (m *Manager) Leaked() uint64 { return uint64(max(m.leaked.Load(), 0)) }

// Load brings a model into service and returns it. Calls for a model being loaded join its load and see its progress;
// one for a loaded model returns it at once, with already true. Either is refused with a *OptionsError if o sets an option to another
// value than the model has; what o leaves open matches all values. The load goes on when ctx ends, for Config.LoadTime at most, and ends
// with ErrLoadEnded when Unload is called. ErrTooManyLoads refuses a load if Config.MaxLoads others run.
func (m *Manager) Load(ctx context.Context, name string, o Options, progress func(Progress)) (inst *Instance, already bool, err error) {
	if err := CheckName(name); err != nil {
		return nil, false, err
	}
	for {
		m.mu.Lock()
		if m.mu.stopped {
			m.mu.Unlock()
			return nil, false, ErrStopped
		}
		if inst := m.mu.instances[name]; inst != nil && !inst.leaving() {
			err := inst.meets(o)
			kept := err == nil && inst.keep(o.Pin)
			if err != nil || kept {
				m.mu.Unlock()
				return inst, kept, err
			}
		}
		j, joined := m.mu.loads[name]
		if !joined {
			if n := len(m.mu.loads); n >= m.cfg.MaxLoads {
				m.mu.Unlock()
				return nil, false, fmt.Errorf("%w: %d; try again later", ErrTooManyLoads, n)
			}
			j = newJob(m.ctx, o)
			m.mu.loads[name] = j
			m.work.Go(func() { m.run(name, j) })
		}
		m.mu.Unlock()
		if err := j.options.differ(name, "is being loaded", o, m.cfg.BlockSize); err != nil {
			return nil, false, err
		}
		inst, err = j.wait(ctx, progress)
		switch {
		case joined && (errors.Is(err, ErrDigest) || errors.Is(err, ErrOption)) && ctx.Err() == nil:
			continue // what another caller expected says nothing of what this one does
		case err == nil:
			err = inst.meets(o)
		}
		if err != nil {
			return nil, false, err
		}
		inst.keep(o.Pin)
		return inst, false, nil
	}
}

// run is one load.
func (m *Manager) run(name string, j *job) {
	j.report(Progress{Stage: Queued})
	defer j.end(nil)
	o := j.options
	ctx, end := context.WithTimeoutCause(j.ctx, m.cfg.LoadTime, fmt.Errorf("%w: model %q was not loaded within %v",
		context.DeadlineExceeded, name, m.cfg.LoadTime))
	defer end()
	begin := time.Now()
	inst, refused, err := m.load(ctx, name, o, j)
	m.refused.Add(uint64(refused))
	m.mu.Lock()
	delete(m.mu.loads, name)
	if inst != nil { // also one that failed and holds what the device refuses: it is there until its memory is free
		inst.keep(o.Pin) // before anybody may find it idle
		m.mu.instances[name] = inst
	}
	m.mu.Unlock()
	if err != nil {
		m.failedCount.Add(1)
		m.logger.Warn("model not loaded", "model", name, "error", err)
	} else {
		m.loadedCount.Add(1)
		m.logger.Info("model loaded", "model", name, "digest", fmt.Sprintf("%x", inst.Digest[:8]), "class", inst.ClassID,
			"device_bytes", inst.DeviceBytes, "kv_blocks", inst.Runner.KVBlocks, "took", time.Since(begin).Round(time.Millisecond))
	}
	j.finish(inst, err)
}

// load makes room for a model of this name, waits for its turn and loads it, as loader.load does.
func (m *Manager) load(ctx context.Context, name string, o Options, j *job) (_ *Instance, refused int, err error) {
	// Without the turn: requests may go on for long, and other loads need not wait for them.
	pinned, err := m.evict(ctx, name)
	if err != nil {
		return nil, 0, err
	}
	if m.turn.Acquire(ctx, 1) != nil {
		return nil, 0, context.Cause(ctx)
	}
	defer m.turn.Release(1)
	if ctx.Err() != nil {
		return nil, 0, context.Cause(ctx)
	}
	for {
		l := loader{cfg: m.cfg, device: m.device, catalog: m.catalog, name: name, options: o, progress: j.report, logger: m.logger,
			leaked: &m.leaked, swap: &m.swap}
		inst, refused, err := l.load(ctx)
		var short *FitError
		if errors.As(err, &short) && m.makeRoom(ctx, short) {
			continue
		}
		if err == nil && pinned {
			inst.keep(&pinned)
		}
		return inst, refused, err
	}
}

// evict removes an instance of this name that can serve no more, waiting for its requests. pinned is whether it was pinned and
// failed: then who loads it again wants it pinned.
func (m *Manager) evict(ctx context.Context, name string) (pinned bool, err error) {
	m.mu.Lock()
	inst := m.mu.instances[name]
	m.mu.Unlock()
	if inst == nil {
		return false, nil
	}
	status := inst.Status()
	select {
	case <-inst.drain():
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	return status.Pinned && status.State == Failed, m.remove(inst, ErrUnloaded)
}

// remove closes an instance and forgets it. It is there, draining, until its memory is free; calls for one that is
// being closed wait for that. One whose memory the device refuses stays, out of service, to be removed later.
func (m *Manager) remove(inst *Instance, cause error) error {
	refused, err := inst.close(cause)
	m.refused.Add(uint64(refused))
	if err != nil {
		m.logger.Error("model not unloaded, the device refuses its memory", "model", inst.Name, "error", err)
		inst.fail(err)
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.instances[inst.Name] == inst {
		delete(m.mu.instances, inst.Name)
		m.unloadedCount.Add(1)
	}
	return nil
}

// RefusedFrees is how often the device refused to take memory of a model back; each refusal leaves that memory with its
// model, which is listed as failed.
func (m *Manager) RefusedFrees() uint64 { return m.refused.Load() }

// Loads is how many loads have ended since the start, with a model in service and without one. Calls that join a load are none.
func (m *Manager) Loads() (loaded, failed uint64) { return m.loadedCount.Load(), m.failedCount.Load() }

// Unloads is how many models were taken out since the start.
func (m *Manager) Unloads() uint64 { return m.unloadedCount.Load() }

// Acquire gives a loaded model to a request, which releases it when done.
func (m *Manager) Acquire(name string) (*Instance, func(), error) { return m.acquire(name, true) }

// acquire gives a loaded model to a request, or to a check.
func (m *Manager) acquire(name string, request bool) (*Instance, func(), error) {
	if err := CheckName(name); err != nil {
		return nil, nil, err
	}
	m.mu.Lock()
	inst, stopped := m.mu.instances[name], m.mu.stopped
	loading := m.mu.loads[name] != nil
	m.mu.Unlock()
	switch {
	case stopped:
		return nil, nil, ErrStopped
	case inst != nil:
		release, err := inst.acquire(request)
		return inst, release, err
	case loading:
		return nil, nil, fmt.Errorf("%w: %q is being loaded", ErrNotLoaded, name)
	}
	if err := m.catalog.look(name); err != nil {
		return nil, nil, err
	}
	return nil, nil, fmt.Errorf("%w: %q; call LoadModel first", ErrNotLoaded, name)
}

// Status is a model on this worker.
type Status struct {
	Name        string
	State       State
	Problem     error
	Digest      engine.Digest
	Facts       Facts
	Context     int
	ClassID     string
	Defaults    bool // whether unset knobs have the values of Facts.Sampling
	Runner      engine.RunnerConfig
	DeviceBytes uint64        // held now
	VerifiedAge time.Duration // since the last complete check of its resident bytes; 0 before the first
	Pinned      bool          // whether it stays until it is told to go
	IdleAge     time.Duration // since its last request or its load; 0 while a request holds it, or out of service
	IdleUnload  time.Duration // IdleAge at which it is unloaded; 0: never for that
	Reclaimable bool          // whether a load that needs room may unload it now
	Progress    Progress      // while loading
	Steps       batch.Stats
}

// Status is the model as it is now.
func (i *Instance) Status() Status {
	i.mu.Lock()
	defer i.mu.Unlock()
	return Status{
		Name: i.Name, State: i.mu.state, Problem: i.mu.problem, Digest: i.Digest, Facts: i.Facts, Context: i.Context,
		ClassID: i.ClassID, Defaults: i.Defaults != nil, Runner: i.Runner, DeviceBytes: i.held.Load(), VerifiedAge: i.verifiedAgeLocked(),
		Pinned: i.mu.pinned, IdleAge: i.idleLocked(time.Now()), Steps: i.stepStats(),
	}
}

func (i *Instance) verifiedAgeLocked() time.Duration {
	if i.mu.verified.IsZero() {
		return 0
	}
	return max(time.Since(i.mu.verified), 1)
}

// Loaded lists the models loaded or being loaded, sorted by name.
func (m *Manager) Loaded() []Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []Status
	for _, inst := range m.mu.instances {
		s := inst.Status()
		s.Reclaimable = reclaimable(s, m.cfg.EvictIdle)
		if !s.Pinned {
			s.IdleUnload = m.cfg.IdleUnload
		}
		all = append(all, s)
	}
	for name, j := range m.mu.loads {
		if m.mu.instances[name] == nil {
			all = append(all, Status{Name: name, State: Loading, Progress: j.latest()})
		}
	}
	slices.SortFunc(all, func(a, b Status) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// Instances are the models that are loaded, in no order: a caller that keeps one keeps it also when it is unloaded.
func (m *Manager) Instances() []*Instance {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.mu.instances))
}

// Files lists the model files, sorted by name.
func (m *Manager) Files() []Entry { return m.catalog.list() }

// Close ends every load and every request with ErrStopped and gives the device's memory back. Where the device refuses
// some of it, Close may be called again.
func (m *Manager) Close() error {
	m.mu.Lock()
	m.mu.stopped = true
	m.mu.Unlock()
	m.stop(ErrStopped)
	m.work.Wait()
	m.mu.Lock()
	instances := slices.Collect(maps.Values(m.mu.instances))
	m.mu.Unlock()
	var errs []error
	for _, inst := range instances {
		errs = append(errs, m.remove(inst, ErrStopped))
	}
	return errors.Join(errs...)
}
