package model

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// touch counts as use of an instance in service and sets its pin if pin is not nil. It returns
// false if the instance is out of service.
func (i *Instance) touch(pin *bool) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.mu.state != Ready {
		return false
	}
	i.mu.used = time.Now()
	if pin != nil {
		i.mu.pinned = *pin
	}
	return true
}

// idleLocked is the time since the last request; 0 in use or out of service.
func (i *Instance) idleLocked(now time.Time) time.Duration {
	if i.mu.state != Ready || i.mu.requests > 0 {
		return 0
	}
	return max(now.Sub(i.mu.used), 1)
}

// retire takes an idle instance out of service if it is not pinned and unused for at least after.
// The decision is under the lock that acquire uses, so a concurrent request either keeps the
// instance in service or is refused.
func (i *Instance) retire(after time.Duration) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if idle := i.idleLocked(time.Now()); i.mu.pinned || idle == 0 || idle < after {
		return false
	}
	i.mu.state = Draining
	return true
}

// reclaimable reports whether a load may unload a model; after 0 means never.
func reclaimable(s Status, after time.Duration) bool {
	return after > 0 && !s.Pinned && s.IdleAge >= after
}

// reap unloads models that no request has used for Config.IdleUnload.
func (m *Manager) reap(ctx context.Context) {
	for ctx.Err() == nil {
		next := m.cfg.IdleUnload // for models in use now or loaded later
		for _, inst := range m.Instances() {
			status := inst.Status()
			if status.Pinned || status.IdleAge == 0 {
				continue
			}
			if left := m.cfg.IdleUnload - status.IdleAge; left > 0 {
				next = min(next, left)
				continue
			}
			m.unloadIdle(ctx, inst, m.cfg.IdleUnload, "no request used it")
		}
		pause(ctx, next)
	}
}

// unloadIdle unloads a model if it is still idle for this long, and reports whether its memory is
// free.
func (m *Manager) unloadIdle(ctx context.Context, inst *Instance, after time.Duration, why string) bool {
	idle, held := inst.Status().IdleAge, inst.held.Load()
	if !inst.retire(after) {
		return false
	}
	select {
	case <-inst.drain(): // a residency check ends early
	case <-ctx.Done(): // the manager closes it
		return false
	}
	if m.remove(inst, ErrUnloaded) != nil { // logged
		return false
	}
	m.logger.Info("model unloaded", "model", inst.Name, "why", why, "idle", idle.Round(time.Millisecond), "freed", held)
	return true
}

// makeRoom unloads idle models for a load that does not fit. If it returns false, no memory was
// freed, and e lists the idle models.
func (m *Manager) makeRoom(ctx context.Context, e *FitError) (freed bool) {
	instances := map[string]*Instance{}
	for _, inst := range m.Instances() {
		if s := inst.Status(); !s.Pinned && s.IdleAge > 0 {
			instances[s.Name] = inst
			e.Idle = append(e.Idle, Idle{Name: s.Name, Bytes: s.DeviceBytes, Age: s.IdleAge})
		}
	}
	slices.SortFunc(e.Idle, func(a, b Idle) int { return cmp.Or(-cmp.Compare(a.Age, b.Age), cmp.Compare(a.Name, b.Name)) })
	if m.cfg.EvictIdle <= 0 {
		return false
	}
	short := e.Needed - e.Free
	for _, v := range victims(short, m.cfg.EvictIdle, e.Idle) {
		freed = m.unloadIdle(ctx, instances[v.Name], m.cfg.EvictIdle, "room for "+e.Name) || freed
	}
	if !freed {
		e.RoomIn = roomIn(short, m.cfg.EvictIdle, e.Idle)
	}
	return freed
}

// victims returns the models to unload so that at least short bytes become free: models unused for
// at least after, longest unused first, without any that the others make unnecessary. It returns
// none if all together are too few, because a model must not be unloaded in vain. from is sorted,
// longest unused first.
func victims(short uint64, after time.Duration, from []Idle) []Idle {
	var chosen []Idle
	var sum uint64
	for _, m := range from {
		if sum < short && m.Age >= after {
			chosen = append(chosen, m)
			sum += m.Bytes
		}
	}
	if sum < short {
		return nil
	}
	// The most recently used ones are spared first.
	for i := len(chosen) - 1; i >= 0; i-- {
		if sum-chosen[i].Bytes >= short {
			sum -= chosen[i].Bytes
			chosen = slices.Delete(chosen, i, i+1)
		}
	}
	return chosen
}

// roomIn is how long it takes until victims returns some, if none is used; 0: never.
func roomIn(short uint64, after time.Duration, from []Idle) time.Duration {
	var sum uint64
	for _, m := range from { // ages fall: each is ready later than the one before
		if sum += m.Bytes; sum >= short {
			return max(after-m.Age, time.Millisecond)
		}
	}
	return 0
}
