package fleet

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

// probeEvery is the time between probes of the round trip. Each costs a message in either
// direction, in addition to the worker's own.
const probeEvery = 5 * time.Second

// member is one address that is followed. Its own goroutine changes it; others read it under its
// lock.
type member struct {
	address string
	cancel  context.CancelFunc // stops following

	mu struct {
		sync.Mutex
		tracker   tracker
		tried     bool   // whether it has reported or failed once
		changed   bool   // whether entry is older than the rest
		entry     entry  // in snapshots
		failure   string // why its last stream ended; empty while one is open
		last      time.Time
		modelsAt  time.Time // when the report's models arrived
		roundTrip time.Duration
		link      *Link // of the current session; nil between sessions
		load      *sharedLoad
		links     []*Link // open ones: of the current session, and of earlier ones that requests hold
	}
}

// newMember returns a member that has not reported.
func newMember(address string, t tracker) *member {
	m := &member{address: address}
	m.mu.load, m.mu.changed, m.mu.tracker = &sharedLoad{}, true, t
	return m
}

// connect makes a link, which is listed in its member and its fleet while it is open.
func (f *Fleet) connect(m *member) (*Link, error) {
	dial := func() (*grpc.ClientConn, error) { return f.cfg.Dial(m.address) }
	first, err := dial()
	if err != nil {
		return nil, err
	}
	link := newLink(first, dial, f.cfg)
	link.onDigest = func(model, digest string) { m.observeDigest(link, model, digest) }
	link.onClose = func() { f.disconnected(m, link) }
	f.links.Store(link, struct{}{})
	m.mu.Lock()
	m.mu.links = append(m.mu.links, link)
	m.mu.Unlock()
	return link, nil
}

// disconnected removes a link from the lists.
func (f *Fleet) disconnected(m *member, link *Link) {
	f.links.Delete(link)
	m.mu.Lock()
	m.mu.links = slices.DeleteFunc(m.mu.links, func(l *Link) bool { return l == link })
	m.mu.Unlock()
}

// observeDigest records the digest that an answer over a link states. It ignores answers of an
// earlier run of the worker.
func (m *member) observeDigest(link *Link, model, digest string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if link.incarnation == m.mu.tracker.report.GetIncarnation() {
		m.mu.tracker.observeDigest(model, digest)
	}
}

// refresh returns the member's entry in snapshots, which it makes again if something has changed,
// and whether the member was tried. identity reports whether the worker or its run is another one
// than before.
func (m *member) refresh() (e *entry, tried, identity bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.changed {
		before := m.mu.entry
		m.mu.entry = m.entryLocked()
		m.mu.changed = false
		identity = before.Connected != m.mu.entry.Connected ||
			before.Report.GetWorkerId() != m.mu.entry.Report.GetWorkerId() ||
			before.Report.GetIncarnation() != m.mu.entry.Report.GetIncarnation()
	}
	return &m.mu.entry, m.mu.tried, identity
}

// current returns the member as of now.
func (m *member) current() Member {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.tracker.newest()
	return m.memberLocked()
}

// run follows one address until ctx ends.
func (f *Fleet) run(ctx context.Context, m *member) {
	for failures := 0; ; failures++ {
		connected, err := f.session(ctx, m)
		if ctx.Err() != nil {
			return
		}
		f.events.streamEnded(connected, err)
		err = nameError(m.address, err)
		if connected {
			failures = 0
			f.logger.Warn("worker disconnected", "address", m.address, "worker", m.workerID(), "error", reason(err))
		} else if failures == 0 || failures == 10 {
			f.logger.Warn("worker not reached", "address", m.address, "error", reason(err))
		}
		m.setFailure(err)
		f.publishSoon()
		if !sleep(ctx, f.cfg.backoff(failures)) {
			return
		}
	}
}

// workerID returns the worker's id; empty before its first report.
func (m *member) workerID() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.tracker.report.GetWorkerId()
}

// reason returns an error's text without gRPC's own words around it.
func reason(err error) string {
	text := status.Convert(err).Message()
	if cause, found := rpc.ConnectionError(text); found {
		return cause
	}
	return text
}

// session runs one health stream from dial to end. err is why it ended and is never nil. connected
// reports whether the worker reported.
func (f *Fleet) session(ctx context.Context, m *member) (connected bool, err error) {
	link, err := f.connect(m)
	if err != nil {
		return false, err
	}
	defer link.Release()
	streaming, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(link.Lost(), func() { cancel(context.Cause(link.Lost())) })()
	m.begin()
	defer func() {
		m.end()
		link.reporting.Store(false)
		if link.Lost().Err() != nil {
			err = context.Cause(link.Lost())
		}
	}()

	stream, err := pb.NewWorkerServiceClient(link.first).Health(streaming)
	if err != nil {
		return false, err
	}
	p := probe{number: 1, sent: time.Now()}
	send := func(ack uint64) error {
		return stream.Send(&pb.HealthRequest{Ack: ack, Interval: durationpb.New(f.cfg.Interval), Probe: p.number})
	}
	if err := send(0); err != nil {
		return false, streamError(stream)
	}
	for {
		in, err := stream.Recv()
		if err != nil {
			return connected, endError(err)
		}
		link.reported.Store(true)
		now := time.Now()
		e := f.apply(m, link, in, now, &p)
		if e.lose != nil {
			m.loseLinks(link.incarnation, e.lose)
			return connected, e.lose
		}
		if e.end != nil {
			return connected, e.end
		}
		connected = connected || in.GetFull() != nil
		var ack uint64 // 0 requests a full report
		switch {
		case e.resync:
			f.events.resyncs.Add(1)
		case now.Sub(p.sent) >= probeEvery:
			ack = in.GetSequence()
			p = probe{number: p.number + 1, sent: now}
		default:
			continue
		}
		if err := send(ack); err != nil {
			return connected, streamError(stream)
		}
	}
}

// streamError returns why a stream has ended on which a send failed. The status comes after the
// messages that were received before it.
func streamError(stream interface {
	Recv() (*pb.HealthResponse, error)
}) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return endError(err)
		}
	}
}

// endError replaces io.EOF by an error that says that the worker has ended its stream.
func endError(err error) error {
	if errors.Is(err, io.EOF) {
		return errEnded
	}
	return err
}

// probe is the last probe of the round trip.
type probe struct {
	number uint64
	sent   time.Time
}

// begin begins a session.
func (m *member) begin() {
	m.mu.Lock()
	m.mu.tracker.open()
	m.mu.Unlock()
}

// end ends the current session.
func (m *member) end() {
	m.mu.Lock()
	m.mu.tracker.close()
	m.mu.load.unclaim(m)
	m.mu.link, m.mu.changed = nil, true
	m.mu.Unlock()
}

// setFailure sets why the last session ended.
func (m *member) setFailure(why error) {
	m.mu.Lock()
	m.mu.tried, m.mu.failure, m.mu.changed = true, reason(why), true
	m.mu.Unlock()
}

// loseLinks gives up every request on a run of the worker, over the links of all sessions.
func (m *member) loseLinks(incarnation string, why error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.mu.links {
		if l.incarnation == incarnation {
			l.lose(why)
		}
	}
}

// setDrainingLocked sets on every link to a run of the worker whether that drains.
func (m *member) setDrainingLocked(incarnation string, draining bool) {
	for _, l := range m.mu.links {
		if l.incarnation == incarnation {
			l.drain.set(draining)
		}
	}
}

// apply applies one message to a member.
func (f *Fleet) apply(m *member, link *Link, in *pb.HealthResponse, now time.Time, p *probe) effect {
	full := in.GetFull()
	if full != nil {
		f.assignLoad(m, full.GetWorkerId(), full.GetIncarnation())
	}
	m.mu.Lock()
	e := m.mu.tracker.apply(in)
	if full != nil || in.GetDelta().GetLoad() != nil || in.GetDelta().GetModelsChanged() {
		if m.mu.load.claim(m) {
			setReports(&m.mu.load.Load, m.mu.tracker.report)
		}
	}
	m.mu.last = now
	if full != nil || in.GetDelta().GetModelsChanged() {
		m.mu.modelsAt = now
	}
	if in.GetProbe() == p.number {
		m.mu.roundTrip = now.Sub(p.sent)
	}
	joined := e.end == nil && full != nil && m.mu.link == nil
	if joined {
		m.mu.tried, m.mu.failure, m.mu.link = true, "", link
		link.incarnation = full.GetIncarnation()
	}
	m.mu.changed = m.mu.changed || e.changed || e.numbers
	link.patience.Store(int32(patience(m.mu.tracker.stepBound(), f.cfg.Stale)))
	if e.changed {
		m.setDrainingLocked(link.incarnation, m.mu.tracker.report.GetState() == pb.WorkerState_WORKER_STATE_DRAINING)
	}
	m.mu.Unlock()
	switch {
	case e.changed:
		f.publishSoon()
	case e.numbers:
		f.publishLater()
	}
	if joined {
		f.logger.Info("worker connected", "address", m.address, "worker", full.GetWorkerId(),
			"incarnation", full.GetIncarnation(), "state", full.GetState(), "models", len(full.GetModels()))
	}
	return e
}
