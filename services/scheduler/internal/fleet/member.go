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

// probeEvery is the time between probes of the round trip: each costs a message either way beside those of the worker's own interval.
const probeEvery = 5 * time.Second

// member is one address that is followed. Its goroutine writes, anyone reads a view.
type member struct {
	address string
	leave   context.CancelFunc

	mu        sync.Mutex
	tracker   tracker // guarded by mu, as all below
	tried     bool    // whether it has reported or failed once
	changed   bool    // whether entry is older than the rest
	entry     entry   // what snapshots have of it
	failure   string  // why its last stream ended; empty while one is open
	last      time.Time
	modelsAt  time.Time // when the report's models came
	roundTrip time.Duration
	link      *Link // of the session under way; nil between sessions
	load      *told
	open      []*Link // links that are open: the present session's, and those of earlier ones that requests hold
}

// connect makes a link and remembers it while it is open.
func (f *Fleet) connect(m *member) (*Link, error) {
	dial := func() (*grpc.ClientConn, error) { return f.cfg.Dial(m.address) }
	first, err := dial()
	if err != nil {
		return nil, err
	}
	link := newLink(first, dial, f.cfg)
	link.served = func(model, digest string) { m.served(link, model, digest) }
	link.closed = func() { f.disconnected(m, link) }
	f.links.Store(link, struct{}{})
	m.mu.Lock()
	m.open = append(m.open, link)
	m.mu.Unlock()
	return link, nil
}

// disconnected forgets a link.
func (f *Fleet) disconnected(m *member, link *Link) {
	f.links.Delete(link)
	m.mu.Lock()
	m.open = slices.DeleteFunc(m.open, func(l *Link) bool { return l == link })
	m.mu.Unlock()
}

// served takes what an answer over a link said that it is of. What an earlier run of the worker said is no matter any more.
func (m *member) served(link *Link, model, digest string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if link.incarnation == m.tracker.report.GetIncarnation() {
		m.tracker.served(model, digest)
	}
}

// refresh is the member as snapshots have it, made anew if something has changed, and whether it has been tried. identity is
// whether it says otherwise than before who is there.
func (m *member) refresh() (is *entry, tried, identity bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.changed {
		before := m.entry
		m.entry = m.viewLocked()
		m.changed = false
		identity = before.Connected != m.entry.Connected ||
			before.Report.GetWorkerId() != m.entry.Report.GetWorkerId() ||
			before.Report.GetIncarnation() != m.entry.Report.GetIncarnation()
	}
	return &m.entry, m.tried, identity
}

// view is the member as of now.
func (m *member) view() Member {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tracker.newest()
	return m.memberLocked()
}

// run follows one address until ctx ends.
func (f *Fleet) run(ctx context.Context, m *member) {
	for failures := 0; ; failures++ {
		connected, err := f.session(ctx, m)
		if ctx.Err() != nil {
			return
		}
		f.counted.ended(connected, err)
		err = nameError(m.address, err)
		if connected {
			failures = 0
			f.logger.Warn("worker disconnected", "address", m.address, "worker", m.workerID(), "error", reason(err))
		} else if failures == 0 || failures == 10 {
			f.logger.Warn("worker not reached", "address", m.address, "error", reason(err))
		}
		m.failed(err)
		f.touch()
		if !sleep(ctx, f.cfg.backoff(failures)) {
			return
		}
	}
}

// workerID is the worker's, empty before it has said it.
func (m *member) workerID() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.tracker.report.GetWorkerId()
}

// reason returns an error's text without gRPC's own words around it.
func reason(err error) string {
	text := status.Convert(err).Message()
	if cause, is := rpc.ConnectionError(text); is {
		return cause
	}
	return text
}

// session holds one health stream from dial to end; err is why it ended and never nil. connected is whether the worker
// reported.
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
	probe := probing{number: 1, sent: time.Now()}
	send := func(ack uint64) error {
		return stream.Send(&pb.HealthRequest{Ack: ack, Interval: durationpb.New(f.cfg.Interval), Probe: probe.number})
	}
	if err := send(0); err != nil {
		return false, ending(stream)
	}
	for {
		in, err := stream.Recv()
		if err != nil {
			return connected, ended(err)
		}
		link.reported.Store(true)
		now := time.Now()
		did := f.take(m, link, in, now, &probe)
		if did.lose != nil {
			m.loseAll(link.incarnation, did.lose)
			return connected, did.lose
		}
		if did.end != nil {
			return connected, did.end
		}
		connected = connected || in.GetFull() != nil
		var ack uint64 // 0 asks for a full report
		switch {
		case did.resync:
			f.counted.resyncs.Add(1)
		case now.Sub(probe.sent) >= probeEvery:
			ack = in.GetSequence()
			probe = probing{number: probe.number + 1, sent: now}
		default:
			continue
		}
		if err := send(ack); err != nil {
			return connected, ending(stream)
		}
	}
}

// ending is why a stream has ended on which a send failed: the status is behind the messages that came before it.
func ending(stream interface {
	Recv() (*pb.HealthResponse, error)
}) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return ended(err)
		}
	}
}

// ended says in words that a worker has ended its stream well.
func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return errEnded
	}
	return err
}

// probing is the probe under way.
type probing struct {
	number uint64
	sent   time.Time
}

// begin says that a session begins.
func (m *member) begin() {
	m.mu.Lock()
	m.tracker.open()
	m.mu.Unlock()
}

// end says that the session under way has ended.
func (m *member) end() {
	m.mu.Lock()
	m.tracker.close()
	m.load.leave(m)
	m.link, m.changed = nil, true
	m.mu.Unlock()
}

// failed says why.
func (m *member) failed(why error) {
	m.mu.Lock()
	m.tried, m.failure, m.changed = true, reason(why), true
	m.mu.Unlock()
}

// loseAll gives up every request on a run of the worker, over the link of this session and those of earlier ones.
func (m *member) loseAll(incarnation string, why error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.open {
		if l.incarnation == incarnation {
			l.lose(why)
		}
	}
}

// tellLocked tells every link to a run of the worker whether it drains.
func (m *member) tellLocked(incarnation string, drains bool) {
	for _, l := range m.open {
		if l.incarnation == incarnation {
			l.drains.set(drains)
		}
	}
}

// take applies one message to a member.
func (f *Fleet) take(m *member, link *Link, in *pb.HealthResponse, now time.Time, probe *probing) effect {
	full := in.GetFull()
	if full != nil {
		f.giveLoad(m, full.GetWorkerId(), full.GetIncarnation())
	}
	m.mu.Lock()
	did := m.tracker.take(in)
	if full != nil || in.GetDelta().GetLoad() != nil || in.GetDelta().GetModelsChanged() || in.GetDelta().GetVectors() != nil {
		if m.load.by(m) {
			observe(&m.load.Load, m.tracker.report)
		}
	}
	m.last = now
	if full != nil || in.GetDelta().GetModelsChanged() {
		m.modelsAt = now
	}
	if in.GetProbe() == probe.number {
		m.roundTrip = now.Sub(probe.sent)
	}
	joined := did.end == nil && full != nil && m.link == nil
	if joined {
		m.tried, m.failure, m.link = true, "", link
		link.incarnation = full.GetIncarnation()
	}
	m.changed = m.changed || did.changed || did.counts
	link.patience.Store(int32(patience(m.tracker.stepBound(), f.cfg.Stale)))
	if did.changed {
		m.tellLocked(link.incarnation, m.tracker.report.GetState() == pb.WorkerState_WORKER_STATE_DRAINING)
	}
	m.mu.Unlock()
	switch {
	case did.changed:
		f.touch()
	case did.counts:
		f.recount()
	}
	if joined {
		f.logger.Info("worker connected", "address", m.address, "worker", full.GetWorkerId(),
			"incarnation", full.GetIncarnation(), "state", full.GetState(), "models", len(full.GetModels()))
	}
	return did
}
