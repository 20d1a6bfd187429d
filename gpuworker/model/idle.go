package model

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// keep counts as use of an instance in service, and pins it or lets it go where pin says so. False: it is not in service.
func (i *Instance) keep(pin *bool) bool {
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

// idleLocked is the time since the last request; 0 while one holds the instance, or out of service.
func (i *Instance) idleLocked(now time.Time) time.Duration {
	if i.mu.state != Ready || i.mu.requests > 0 {
		return 0
	}
	return max(now.Sub(i.mu.used), 1)
}

// retire takes an instance out of service that is not pinned and that no request has held for so long; false leaves it as it was.
// Who decides and who comes are under one lock: a request holds the instance, or is refused.
func (i *Instance) retire(after time.Duration) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if idle := i.idleLocked(time.Now()); i.mu.pinned || idle == 0 || idle < after {
		return false
	}
	i.mu.state = Draining
	return true
}

// reclaimable says whether a load may unload a model; after 0 is never.
func reclaimable(s Status, after time.Duration) bool {
	return after > 0 && !s.Pinned && s.IdleAge >= after
}

// reap unloads models that no request has used for Config.IdleUnload.
func (m *Manager) reap(ctx context.Context) {
	for ctx.Err() == nil {
		next := m.cfg.IdleUnload // of what is in use now, or comes into service
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

// unloadIdle unloads a model that is idle for so long still, and says whether its memory is free.
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

// makeRoom unloads idle models for a load that does not fit. False: there is no more room than before, and the error says what
// idle models there are.
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
