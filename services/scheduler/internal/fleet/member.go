package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// probeEvery is the time between probes of the round trip.
const probeEvery = time.Second

// member is one address that is followed. Its goroutine writes, anyone reads a view.
type member struct {
	address string
	leave   context.CancelFunc

	mu        sync.Mutex
	tried     bool // guarded by mu, as all below; whether it has reported or failed once
	problem   string
	report    *pb.WorkerReport
	prefixes  prefixes
	last      time.Time
	roundTrip time.Duration
	link      *Link // nil unless its report is current
	load      *route.Load
	open      []*Link // connections that are open: the present session's, and those of earlier ones that requests hold
}

// opened makes a link of a connection and remembers it while it is open.
func (m *member) opened(conn *grpc.ClientConn, stale time.Duration) *Link {
	link := newLink(conn, stale, m.closed)
	m.mu.Lock()
	m.open = append(m.open, link)
	m.mu.Unlock()
	return link
}

// closed forgets a link.
func (m *member) closed(link *Link) {
	m.mu.Lock()
	m.open = slices.DeleteFunc(m.open, func(l *Link) bool { return l == link })
	m.mu.Unlock()
}

// unwatch ends the watch for silence on every open link: once nobody follows the worker, requests that it computes without
// a word are no silence. What is left to find a frozen one is the connection's keepalive.
func (m *member) unwatch() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.open {
		l.watch.stop()
	}
}

// view is the member as of now, and whether it has been tried.
func (m *member) view() (Member, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return Member{
		Address: m.address, Connected: m.link != nil, Problem: m.problem, Report: m.report,
		LastMessage: m.last, RoundTrip: m.roundTrip, Link: m.link, Load: m.load, prefixes: m.prefixes,
	}, m.tried
}

// run follows one address until ctx ends.
func (f *Fleet) run(ctx context.Context, m *member) {
	defer m.unwatch()
	for failures := 0; ; failures++ {
		connected, err := f.session(ctx, m)
		if ctx.Err() != nil {
			return
		}
		err = nameError(m.address, err)
		if connected {
			failures = 0
			f.logger.Warn("worker disconnected", "address", m.address, "worker", m.report.GetWorkerId(), "error", reason(err))
		} else if failures == 0 || failures == 10 {
			f.logger.Warn("worker not reached", "address", m.address, "error", reason(err))
		}
		m.mu.Lock()
		m.tried, m.problem = true, reason(err)
		m.mu.Unlock()
		f.touch()
		if !sleep(ctx, f.cfg.backoff(failures)) {
			return
		}
	}
}

// reason is an error's text without gRPC's own words around it.
func reason(err error) string { return status.Convert(err).Message() }

// session holds one health stream from dial to end; err is why it ended and never nil. connected is whether the worker
// reported.
func (f *Fleet) session(ctx context.Context, m *member) (connected bool, err error) {
	conn, err := f.cfg.Dial(m.address)
	if err != nil {
		return false, err
	}
	link := m.opened(conn, f.cfg.Stale)
	defer link.Release()
	streaming, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(link.Lost(), func() { cancel(context.Cause(link.Lost())) })()
	defer func() {
		m.mu.Lock()
		m.link = nil
		m.mu.Unlock()
		if cause := context.Cause(streaming); errors.Is(cause, ErrStale) {
			err = cause
		}
	}()

	stream, err := pb.NewWorkerServiceClient(conn).Health(streaming)
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
	for sequence := uint64(1); ; sequence++ {
		in, err := stream.Recv()
		if err != nil {
			return connected, ended(err)
		}
		link.Heard()
		if in.GetSequence() != sequence {
			return connected, fmt.Errorf("%w: number %d came after %d", ErrGap, in.GetSequence(), sequence-1)
		}
		now := time.Now()
		if err := f.take(m, link, in, now, connected, &probe); err != nil {
			return connected, err
		}
		connected = true
		if now.Sub(probe.sent) >= probeEvery {
			probe = probing{number: probe.number + 1, sent: now}
			if err := send(sequence); err != nil {
				return connected, ending(stream)
			}
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

// take applies one message to a member.
func (f *Fleet) take(m *member, link *Link, in *pb.HealthResponse, now time.Time, connected bool, probe *probing) error {
	var last *pb.WorkerReport
	if connected {
		last = m.report // written by this goroutine only
	}
	report, changed, err := merge(last, in)
	if err != nil {
		return err
	}
	if in.GetFull() != nil {
		f.giveLoad(m, report.GetWorkerId(), report.GetIncarnation())
	}
	if !connected {
		f.logger.Info("worker connected", "address", m.address, "worker", report.GetWorkerId(),
			"incarnation", report.GetIncarnation(), "state", report.GetState(), "models", len(report.GetModels()))
	}
	link.draining.set(report.GetState() == pb.WorkerState_WORKER_STATE_DRAINING)
	m.mu.Lock()
	m.tried, m.problem, m.report, m.last, m.link = true, "", report, now, link
	switch event := in.GetEvent().(type) {
	case *pb.HealthResponse_Full: // every key is told anew behind it
		m.prefixes = nil
	case *pb.HealthResponse_Delta:
		m.prefixes = m.prefixes.listed(report)
	case *pb.HealthResponse_PrefixKeys:
		m.prefixes, changed = m.prefixes.told(event.PrefixKeys, report)
	}
	link.incarnation = report.GetIncarnation()
	for _, l := range m.open {
		if l != link && l.incarnation == link.incarnation {
			l.Heard() // the same process: requests on its earlier connections are in good hands
		}
	}
	if in.GetProbe() == probe.number {
		m.roundTrip = now.Sub(probe.sent)
	}
	m.mu.Unlock()
	if changed {
		f.touch()
	}
	return nil
}
