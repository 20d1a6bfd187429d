package server

import (
	"errors"
	"io"
	"slices"
	"time"

	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

const (
	minHealthInterval     = 250 * time.Millisecond
	defaultHealthInterval = time.Second
	// freshness bounds the age of the readings that a scheduler has while newer ones exist,
	// whatever interval it wants. The engine queries its driver once a second, so with a pulse on
	// either side no reading is older than 2 s.
	freshness = 750 * time.Millisecond
	// maxAssessmentAge is the age of the last assessment beyond which no heartbeat is sent. An
	// assessment waits for the driver, which may wait for the memory of a load.
	maxAssessmentAge = 2 * time.Second
	// requestGap is the least time between two requests of a scheduler, which sends one a second.
	// It slows down a caller that floods the stream.
	requestGap = 10 * time.Millisecond
)

// Health implements WorkerService. It sends a full report at once, deltas when something changes,
// and heartbeats at the wanted interval. When the worker stops, the stream stays open until the
// running requests have ended.
func (s *Server) Health(stream grpc.BidiStreamingServer[pb.HealthRequest, pb.HealthResponse]) error {
	s.subscribers.Add(1)
	defer s.subscribers.Add(-1)
	ctx := stream.Context()
	requests, ended := make(chan *pb.HealthRequest), make(chan error, 1)
	go func() {
		for {
			in, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			select {
			case requests <- in:
			case <-ctx.Done():
				return
			}
			select {
			case <-time.After(requestGap):
			case <-ctx.Done():
				return
			}
		}
	}()
	select {
	case <-s.published:
	case <-ctx.Done():
		return ctx.Err()
	}
	sub := &subscriber{server: s, stream: stream, interval: defaultHealthInterval, timer: time.NewTimer(defaultHealthInterval)}
	defer sub.timer.Stop()
	draining := rpc.Draining(ctx)
	err := sub.sendFull()
	for err == nil && !sub.latest.last {
		sub.arm()
		select {
		case in := <-requests:
			err = sub.handle(in)
		case <-sub.latest.changed:
			err = sub.sendDue()
		case <-sub.timer.C:
			err = sub.sendDue()
		case <-draining:
			s.Stop()
			draining = nil
		case err = <-ended:
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return err
		}
	}
	return err
}

// subscriber is the health stream of one scheduler. One goroutine uses it. It has no queue: a slow
// consumer blocks Send, and what changed until it reads again goes into one delta from the newest
// snapshot.
type subscriber struct {
	server   *Server
	stream   grpc.BidiStreamingServer[pb.HealthRequest, pb.HealthResponse]
	interval time.Duration
	sequence uint64
	probe    uint64 // to be answered by the next message

	requested bool      // a request has arrived
	latest    *snapshot // as last loaded
	sent      revisions // of the parts that were sent
	reportAt  time.Time // when a report or a delta was sent last
	heldAt    time.Time // when a heartbeat was held back last
	// sentAt is when a message was sent last that answered no request: requests must not delay what
	// changes.
	sentAt   time.Time
	prefixes prefixSubscription
	timer    *time.Timer // see arm
}

// handle applies a request. A request for an answer is answered from the newest snapshot.
func (s *subscriber) handle(in *pb.HealthRequest) error {
	if in.Interval != nil {
		s.interval = max(in.GetInterval().AsDuration(), minHealthInterval)
	}
	s.probe = in.GetProbe()
	// An ack of 0 requests a full report. For the first request that report is already on its way.
	resync := in.GetAck() == 0 && s.requested
	s.requested = true
	switch {
	case resync:
		s.server.resyncs.Add(1)
		return s.sendFull()
	case s.probe != 0:
		return s.sendHeartbeat(s.server.latest.Load())
	}
	return nil
}

// sendFull sends the whole report and all cached prefixes.
func (s *subscriber) sendFull() error {
	s.latest = s.server.latest.Load()
	s.sent, s.sentAt = s.latest.revisions, time.Now()
	s.reportAt = s.sentAt
	if err := s.send(&pb.HealthResponse{Event: &pb.HealthResponse_Full{Full: s.latest.report}}); err != nil {
		return err
	}
	s.prefixes.reset()
	return s.sendPrefixes()
}

// sendDue sends the changes of the report if they are urgent or due, or else a heartbeat when that
// is due. At the subscriber's interval it sends the changes of the cached prefixes.
func (s *subscriber) sendDue() error {
	if err := s.sendReport(); err != nil || time.Since(s.prefixes.readAt) < s.interval {
		return err
	}
	return s.sendPrefixes()
}

// sendPrefixes sends which prefixes were added to the caches and removed from them since the last
// time.
func (s *subscriber) sendPrefixes() error {
	models := s.latest.report.GetModels()
	reported := func(name, digest string) bool {
		return slices.ContainsFunc(models, func(m *pb.ModelStatus) bool { return m.GetName() == name && m.GetModelDigest() == digest })
	}
	for _, keys := range s.prefixes.changes(s.server.prefixCaches(), reported) {
		if err := s.send(&pb.HealthResponse{Event: &pb.HealthResponse_PrefixKeys{PrefixKeys: keys}}); err != nil {
			return err
		}
	}
	return nil
}

// sendReport sends the changes of the report, or a heartbeat. Ages are sent only when those that
// were sent are old, so that an idle fleet costs its schedulers nothing but heartbeats. A worker
// that cannot assess itself, because its driver does not return, sends no heartbeat: its state may
// have changed, and schedulers react to its silence.
func (s *subscriber) sendReport() error {
	s.latest = s.server.latest.Load()
	silence := time.Since(s.sentAt)
	switch v := s.latest.revisions; {
	case v.urgent != s.sent.urgent,
		(v.counts != s.sent.counts || v.readings != s.sent.readings) && silence >= min(s.interval, freshness),
		v.ages != s.sent.ages && time.Since(s.reportAt) >= freshness:
		d := s.latest.delta(s.sent)
		s.sent, s.sentAt = v, time.Now()
		s.reportAt = s.sentAt
		return s.send(&pb.HealthResponse{Event: &pb.HealthResponse_Delta{Delta: d}})
	case silence >= s.interval && time.Since(s.latest.at) > maxAssessmentAge:
		s.heldAt = time.Now()
	case silence >= s.interval:
		s.sentAt = time.Now()
		return s.sendHeartbeat(s.latest)
	}
	return nil
}

func (s *subscriber) sendHeartbeat(from *snapshot) error {
	beat := &pb.Heartbeat{Progress: from.report.GetProgress()}
	return s.send(&pb.HealthResponse{Event: &pb.HealthResponse_Heartbeat{Heartbeat: beat}})
}

func (s *subscriber) send(r *pb.HealthResponse) error {
	s.sequence++
	r.Sequence, r.Probe = s.sequence, s.probe
	s.probe = 0
	return s.stream.Send(r)
}

// arm sets the timer to when something may be due though nothing urgent has changed. If readings
// may be sent but did not change, or a heartbeat was held back, that is one pulse later. Cached
// prefixes are due at the interval.
func (s *subscriber) arm() {
	silence := time.Since(s.sentAt)
	wait := min(s.interval, freshness) - silence
	if wait <= 0 {
		wait = min(pulse, max(s.interval-silence, 0))
	}
	s.timer.Reset(max(min(wait, s.interval-time.Since(s.prefixes.readAt)), pulse-time.Since(s.heldAt), 0))
}
