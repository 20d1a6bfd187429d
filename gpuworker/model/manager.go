package model

import (
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

	"github.com/millrace/millrace/gpuworker/engine"
)

// Manager owns the models of one device. Its methods may be called from any goroutine.
type Manager struct {
	cfg      Config
	device   engine.Device
	catalog  *catalog
	logger   hclog.Logger
	ctx      context.Context // of loads, which outlive their callers
	stop     context.CancelCauseFunc
	work     sync.WaitGroup
	loadSlot *semaphore.Weighted // held by the one load that reads and uploads
	refused  atomic.Uint64       // frees of model memory that the device refused
	leaked   atomic.Int64        // leaked buffers of loads that are over
	swap     hostSpace
	tier     hostSpace

	loadedCount, failedCount atomic.Uint64 // loads that ended
	unloadedCount            atomic.Uint64

	mu struct {
		sync.Mutex
		loads     map[string]*job
		instances map[string]*Instance
		stopped   bool
	}
}

// NewManager returns a manager of device. Close ends it, and does not close the device.
func NewManager(cfg Config, device engine.Device, logger hclog.Logger) *Manager {
	cfg.setDefaults()
	m := &Manager{
		cfg: cfg, device: device, catalog: newCatalog(cfg.Dir, device), logger: logger.Named("model"), loadSlot: semaphore.NewWeighted(1),
	}
	m.swap.mu.free = uint64(max(m.swapSpace(), 0))
	m.tier.mu.free = uint64(max(cfg.HostCache, 0))
	m.ctx, m.stop = context.WithCancelCause(context.Background())
	m.mu.loads, m.mu.instances = map[string]*job{}, map[string]*Instance{}
	m.work.Go(func() { m.watch(m.ctx) })
	if cfg.IdleUnload > 0 {
		m.work.Go(func() { m.reap(m.ctx) })
	}
	return m
}

// swapSpace is Config.SwapSpace or the device's default.
func (m *Manager) swapSpace() int64 {
	if m.cfg.SwapSpace != 0 {
		return m.cfg.SwapSpace
	}
	info, err := m.device.Info()
	if err != nil { // no model can be loaded there
		return 0
	}
	return DefaultSwapSpace(info)
}

// Device returns the device that holds the models.
func (m *Manager) Device() engine.Device { return m.device }

// Load brings a model into service and returns it. Concurrent calls for one model share a single
// load (single flight) and see its progress. If the model is loaded, Load returns it at once with
// already true. It returns an *OptionsError if o sets an option to another value than the model
// has. The load continues when ctx ends, for at most Config.LoadTime, and ends with ErrLoadEnded if
// Unload is called. Load returns ErrTooManyLoads if Config.MaxLoads others run.
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
		if inst := m.mu.instances[name]; inst != nil && !inst.retiring() {
			err := inst.match(o)
			touched := err == nil && inst.touch(o.Pin)
			if err != nil || touched {
				m.mu.Unlock()
				return inst, touched, err
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
			continue // another caller's expectation failed, not this one's
		case err == nil:
			err = inst.match(o)
		}
		if err != nil {
			return nil, false, err
		}
		inst.touch(o.Pin)
		return inst, false, nil
	}
}

// run executes one load.
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
	// An instance that failed stays listed while the device refuses to free its memory.
	if inst != nil {
		inst.touch(o.Pin) // before it can be found idle
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

// load makes room for a model of this name, waits for the load slot and loads it.
func (m *Manager) load(ctx context.Context, name string, o Options, j *job) (_ *Instance, refused int, err error) {
	// Before the load slot: the old instance's requests may run for long, and other loads need not
	// wait.
	pinned, err := m.evict(ctx, name)
	if err != nil {
		return nil, 0, err
	}
	if m.loadSlot.Acquire(ctx, 1) != nil {
		return nil, 0, context.Cause(ctx)
	}
	defer m.loadSlot.Release(1)
	if ctx.Err() != nil {
		return nil, 0, context.Cause(ctx)
	}
	for {
		l := loader{cfg: m.cfg, device: m.device, catalog: m.catalog, name: name, options: o, progress: j.report, logger: m.logger,
			leaked: &m.leaked, swap: &m.swap, tier: &m.tier}
		inst, refused, err := l.load(ctx)
		var short *FitError
		if errors.As(err, &short) && m.makeRoom(ctx, short) {
			continue
		}
		if err == nil && pinned {
			inst.touch(&pinned)
		}
		return inst, refused, err
	}
}

// evict removes an instance of this name that is out of service, after its requests have ended.
// pinned reports that it was pinned and failed. The new instance then inherits the pin.
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

// remove closes an instance and deletes it from the list. Until its memory is free the instance is
// listed as draining, and further calls wait. If the device refuses to free memory, the instance
// stays, out of service.
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

// Acquire returns a loaded model for a request. The request must call the release function when
// done.
func (m *Manager) Acquire(name string) (*Instance, func(), error) { return m.acquire(name, true) }

// acquire returns a loaded model for a request or for a residency check.
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
	if err := m.catalog.problem(name); err != nil {
		return nil, nil, err
	}
	return nil, nil, fmt.Errorf("%w: %q; call LoadModel first", ErrNotLoaded, name)
}

// Close ends every load and every request with ErrStopped and frees the device's memory. If the
// device refuses, Close may be called again.
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

// job is one load that any number of callers wait for.
type job struct {
	options Options
	ctx     context.Context         // of loads: they outlive their callers
	end     context.CancelCauseFunc // cancels ctx, which ends the load

	mu struct {
		sync.Mutex
		progress Progress
		changed  chan struct{} // closed and replaced at every report
		done     bool
		inst     *Instance
		err      error
	}
}

func newJob(ctx context.Context, o Options) *job {
	j := &job{options: o}
	j.mu.changed = make(chan struct{})
	j.ctx, j.end = context.WithCancelCause(ctx)
	return j
}

func (j *job) report(p Progress) { j.update(func() { j.mu.progress = p }) }

func (j *job) finish(inst *Instance, err error) {
	j.update(func() { j.mu.done, j.mu.inst, j.mu.err = true, inst, err })
}

func (j *job) update(change func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	change()
	close(j.mu.changed)
	j.mu.changed = make(chan struct{})
}

func (j *job) latest() Progress {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.mu.progress
}

// wait calls progress, which may be nil, with each state that it sees, until the load or ctx ends.
func (j *job) wait(ctx context.Context, progress func(Progress)) (*Instance, error) {
	var seen Progress
	for {
		j.mu.Lock()
		current, done, changed, inst, err := j.mu.progress, j.mu.done, j.mu.changed, j.mu.inst, j.mu.err
		j.mu.Unlock()
		if progress != nil && current != seen {
			progress(current)
			seen = current
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
