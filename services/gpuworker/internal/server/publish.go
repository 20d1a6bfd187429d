package server

import (
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/health"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

// pulse is how often a worker looks at itself: often enough that a hang is told well within a second.
const pulse = 100 * time.Millisecond

// Run looks at the worker once a pulse and publishes what it saw: to every health stream, to the readiness that health checks
// see and to the load that balancers see. It goes on until ctx ends, which must not be before the last call has ended: a
// worker that drains has much to tell. Run it once.
func (s *Server) Run(ctx context.Context, r *rpc.Server) {
	tick := time.NewTicker(pulse)
	defer tick.Stop()
	p := publisher{server: s}
	var last health.State
	for {
		if state, checks := p.publish(); state != last {
			s.logger.Info("worker state changed", "state", stateOf[state], "failed_checks", failedNames(checks))
			r.SetReady(state == health.Ready || state == health.Degraded)
			last = state
		}
		s.looked.done()
		select {
		case <-tick.C:
		case <-s.wake:
		case <-ctx.Done():
			return
		}
	}
}

// nudge brings the next pulse on.
func (s *Server) nudge() {
	select {
	case s.wake <- struct{}{}:
	default: // it is brought on already
	}
}

// publisher makes the snapshots. Only Run uses it.
type publisher struct {
	server  *Server
	overdue health.Overdue
	info    engine.DeviceInfo // of the last time that the device told it
	last    *snapshot
	urgent  chan struct{} // closed when what is urgent in last is no longer so
}

// publish looks at the worker and publishes a snapshot, once the model files are known: a scheduler must not take a file that
// was not looked for yet for one that is not there.
func (p *publisher) publish() (health.State, []health.Check) {
	s := p.server
	// What it was told is looked at first: by the time that it was, what follows from it was so.
	starting, stopping := s.starting.Load(), s.stopping.Load()
	draining := stopping || s.drain.told.Load()
	models := s.models.Loaded()
	s.rates.sample(models)
	info, err := s.models.Device().Info()
	if err == nil {
		p.info = info
	} else { // it is still the device that it was, and what it read then says nothing of now
		p.info.TemperatureC, p.info.PowerMW, p.info.Errors, p.info.CorrectedErrors = nil, nil, nil, nil
		p.info.PhysicalTotal, p.info.PhysicalFree = nil, nil
	}
	load := loadOf(models, p.info)
	s.load.Store(&load)
	in := health.Input{
		Codebooks: s.vectors.Loaded(),
		Starting:  starting, Draining: draining, Models: models, Device: p.info, Failure: err,
		Leaked: s.models.Leaked(), VerifyInterval: s.models.VerifyInterval(),
		Doubtful: p.overdue.Look(models),
	}
	state, checks := health.Assess(in)
	s.look.Store(&health.Look{Input: in, State: state, Checks: checks, At: time.Now()})
	files, known := s.files.get(s.models.Files, s.nudge)
	if !known {
		return state, checks
	}
	r := s.report(in, state, checks, files)
	if p.last != nil && showReloads(p.last.report.GetModels(), r.GetModels()) {
		s.nudge()
	}
	running := r.GetLoad().GetRunning() + r.GetLoad().GetWaiting() + r.GetVectors().GetTrainings()
	p.offer(&snapshot{report: r, over: stopping && running == 0})
	return state, checks
}

// showReloads tells models that were loaded anew between two pulses, with another digest, as still being loaded, once: schedulers take
// a digest that changes while its model serves for a lie.
func showReloads(last, now []*pb.ModelStatus) (reloaded bool) {
	serves := func(m *pb.ModelStatus) bool { return m.GetState() == pb.ModelState_MODEL_STATE_READY }
	for _, m := range now {
		anew := func(was *pb.ModelStatus) bool {
			return serves(was) && serves(m) && was.GetName() == m.GetName() && was.GetModelDigest() != m.GetModelDigest()
		}
		if slices.ContainsFunc(last, anew) {
			name := m.GetName()
			proto.Reset(m)
			m.Name, m.State, reloaded = name, pb.ModelState_MODEL_STATE_LOADING, true
		}
	}
	return reloaded
}

// offer makes a snapshot the latest, and wakes the health streams if something urgent differs from the last one.
func (p *publisher) offer(now *snapshot) {
	last, woken := p.last, p.urgent
	if last != nil {
		now.parts = last.parts.next(last, now)
	}
	if last == nil || now.parts.urgent != last.parts.urgent {
		p.urgent = make(chan struct{})
	}
	now.at, now.changed = time.Now(), p.urgent
	p.last = now
	p.server.latest.Store(now)
	switch {
	case last == nil:
		close(p.server.published)
	case woken != p.urgent:
		close(woken)
	}
}

func failedNames(checks []health.Check) (names []string) {
	for _, c := range checks {
		if !c.OK {
			names = append(names, c.Name)
		}
	}
	return names
}
