package server

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/health"
	"github.com/millrace/millrace/gpuworker/model"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

// pulse is how often a worker assesses itself: often enough that a hang is reported well within a
// second.
const pulse = 100 * time.Millisecond

// Run assesses the worker once a pulse and publishes the result: to every health stream, to the
// readiness that health checks see, and to the load that balancers see. It returns when ctx ends.
// That must not be before the last call has ended, because a draining worker still reports. Call it
// once.
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
		s.pulses.notify()
		select {
		case <-tick.C:
		case <-s.wake:
		case <-ctx.Done():
			return
		}
	}
}

// publisher makes the snapshots. Only Run uses it.
type publisher struct {
	server  *Server
	overdue health.Overdue
	device  engine.DeviceInfo // as last read
	last    *snapshot
	urgent  chan struct{} // closed when an urgent part differs from that of last
}

// publish assesses the worker. It publishes a snapshot once the model files were read: before that,
// schedulers would take every file for missing.
func (p *publisher) publish() (health.State, []health.Check) {
	s := p.server
	// Read the flags before the models, so that the models are at least as new. Otherwise Started
	// could come in between, and the worker would be READY without its models.
	starting, stopping := s.starting.Load(), s.stopping.Load()
	draining := stopping || s.drain.reported.Load()
	models := s.models.Loaded()
	s.rates.sample(models)
	device, err := s.models.Device().Info()
	if err == nil {
		p.device = device
	} else { // the device is the same, and its readings are out of date
		p.device.TemperatureC, p.device.PowerMW, p.device.Errors, p.device.CorrectedErrors = nil, nil, nil, nil
		p.device.PhysicalTotal, p.device.PhysicalFree = nil, nil
	}
	load := loadOf(models, p.device)
	s.load.Store(&load)
	in := health.Input{
		Starting: starting, Draining: draining, Models: models, Device: p.device, Failure: err,
		Leaked: s.models.Leaked(), VerifyInterval: s.models.VerifyInterval(),
		Doubtful: p.overdue.Look(models),
	}
	s.extension.Assess(&in)
	state, checks := health.Assess(in)
	s.assessment.Store(&health.Look{Input: in, State: state, Checks: checks, At: time.Now()})
	files, known := s.files.get(s.models.Files, s.Nudge)
	if !known {
		return state, checks
	}
	r := s.report(in, state, checks, files)
	if p.last != nil && markReloads(p.last.report.GetModels(), r.GetModels()) {
		s.Nudge()
	}
	running := int(r.GetLoad().GetRunning()+r.GetLoad().GetWaiting()) + s.extension.Report(r)
	p.offer(&snapshot{report: r, extension: s.extension, last: stopping && running == 0})
	return state, checks
}

// markReloads reports a model that was reloaded with another digest between two pulses as LOADING,
// for one pulse. Schedulers reject a digest that changes while its model is READY.
func markReloads(before, after []*pb.ModelStatus) (reloaded bool) {
	ready := func(m *pb.ModelStatus) bool { return m.GetState() == pb.ModelState_MODEL_STATE_READY }
	for _, m := range after {
		replaced := func(old *pb.ModelStatus) bool {
			return ready(old) && ready(m) && old.GetName() == m.GetName() && old.GetModelDigest() != m.GetModelDigest()
		}
		if slices.ContainsFunc(before, replaced) {
			name := m.GetName()
			proto.Reset(m)
			m.Name, m.State, reloaded = name, pb.ModelState_MODEL_STATE_LOADING, true
		}
	}
	return reloaded
}

// offer makes a snapshot the latest, and wakes the subscribers if an urgent part differs from the
// last one.
func (p *publisher) offer(next *snapshot) {
	last, waiting := p.last, p.urgent
	if last != nil {
		next.revisions = last.revisions.next(last, next)
	}
	if last == nil || next.revisions.urgent != last.revisions.urgent {
		p.urgent = make(chan struct{})
	}
	next.at, next.changed = time.Now(), p.urgent
	p.last = next
	p.server.latest.Store(next)
	switch {
	case last == nil:
		close(p.server.published)
	case waiting != p.urgent:
		close(waiting)
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

// fileList caches the list of model files, because reports need it ten times a second and it
// changes rarely.
type fileList struct {
	mu struct {
		sync.Mutex
		known   bool      // it was read once
		readAt  time.Time // when the last read ended
		reading bool      // a read runs
		files   []*pb.ModelFile
	}
}

const fileListAge = 2 * time.Second

// get returns the list as last read, and whether it was read at all. It never blocks, because a
// slow disk must not silence the health streams: schedulers would count the worker as lost. If the
// list is old, a goroutine reads it and calls done.
func (l *fileList) get(list func() []model.Entry, done func()) (files []*pb.ModelFile, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.mu.reading && (!l.mu.known || time.Since(l.mu.readAt) >= fileListAge) {
		l.mu.reading = true
		go func() {
			files := modelFiles(list())
			l.mu.Lock()
			l.mu.files, l.mu.readAt, l.mu.reading, l.mu.known = files, time.Now(), false, true
			l.mu.Unlock()
			done()
		}()
	}
	return l.mu.files, l.mu.known
}

func modelFiles(entries []model.Entry) []*pb.ModelFile {
	files := make([]*pb.ModelFile, 0, len(entries))
	for _, f := range entries {
		out := &pb.ModelFile{Name: f.Name, FileBytes: f.Bytes}
		if f.Problem != nil {
			out.Problem = f.Problem.Error()
		} else {
			out.NeededBytes, out.Capabilities = f.WeightBytes, capabilitiesOf(f.Facts)
		}
		files = append(files, out)
	}
	return files
}
