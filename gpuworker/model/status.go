package model

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
)

// Status describes a model on this worker.
type Status struct {
	Name        string
	State       State
	Problem     error
	Digest      engine.Digest
	Facts       Facts
	Context     int
	ClassID     string
	Defaults    bool // unset sampling parameters get the values of Facts.Sampling
	Runner      engine.RunnerConfig
	DeviceBytes uint64
	VerifiedAge time.Duration // since the last complete residency check; 0 before the first
	Pinned      bool          // it is unloaded by Unload only
	IdleAge     time.Duration // since its last use; 0 in use or out of service
	IdleUnload  time.Duration // it is unloaded at this IdleAge; 0: never
	Reclaimable bool          // a load that needs room may unload it now
	Progress    Progress      // while loading
	Steps       batch.Stats
}

// Status returns the model's current status.
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

// Loaded lists the models that are loaded or being loaded, sorted by name.
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

// Instances returns the loaded models in no order. They stay usable to the caller as values, but
// may be unloaded at any time.
func (m *Manager) Instances() []*Instance {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.mu.instances))
}

// Files lists the model files, sorted by name.
func (m *Manager) Files() []Entry { return m.catalog.list() }

// RefusedFrees is how often the device refused to free memory of a model. That memory stays with
// its model, which is listed as failed.
func (m *Manager) RefusedFrees() uint64 { return m.refused.Load() }

// Loads is how many loads succeeded and failed since the start. A call that joins a load is not
// counted.
func (m *Manager) Loads() (loaded, failed uint64) { return m.loadedCount.Load(), m.failedCount.Load() }

// Unloads is how many models were unloaded since the start.
func (m *Manager) Unloads() uint64 { return m.unloadedCount.Load() }

// Leaked is how many buffers of finished loads the device refuses to free. Their models are listed
// as failed, and unloading those tries again.
func (m *Manager) Leaked() uint64 { return uint64(max(m.leaked.Load(), 0)) }

// VerifyInterval is the pause between residency checks of a model; 0: no checks.
func (m *Manager) VerifyInterval() time.Duration { return max(m.cfg.VerifyInterval, 0) }

// stepStats is zero without a loop, as while loading.
func (i *Instance) stepStats() batch.Stats {
	if i.Loop == nil {
		return batch.Stats{}
	}
	return i.Loop.Stats()
}
