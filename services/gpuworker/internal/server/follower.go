package server

import (
	"slices"
	"time"

	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

const (
	minHealthInterval     = 250 * time.Millisecond
	defaultHealthInterval = time.Second
	// freshness is how old the numbers that a scheduler was told may become while newer ones are there, whatever interval it
	// wants: an engine asks its driver once a second, and with a pulse before and behind that no number is older than 2 s.
	freshness = 750 * time.Millisecond
	// blind is how old the worker's last look at itself may be for a heartbeat: a look waits for the driver, which may wait for
	// memory of a load.
	blind = 2 * time.Second
)

// follower is one scheduler's health stream. One goroutine uses it.
type follower struct {
	server   *Server
	stream   grpc.BidiStreamingServer[pb.HealthRequest, pb.HealthResponse]
	interval time.Duration
	sequence uint64
	probe    uint64
	asked    bool      // a request has come
	seen     *snapshot // the last one looked at
	told     parts     // what the scheduler knows
	news     time.Time // when it was told that
	held     time.Time // when a heartbeat was last held back
	sent     time.Time // of the last message that was no answer: a scheduler that asks often must not miss what changes
	prefixes prefixReader
	due      *time.Timer // fires when there may be something to send though nothing urgent has changed
}

// request takes a wish, and answers one that asks for an answer from what is known already.
func (f *follower) request(in *pb.HealthRequest) error {
	if in.Interval != nil {
		f.interval = max(in.GetInterval().AsDuration(), minHealthInterval)
	}
	f.probe = in.GetProbe()
	// The first request asks for the full report that is on its way already.
	again := in.GetAck() == 0 && f.asked
	f.asked = true
	switch {
	case again:
		f.server.resyncs.Add(1)
		return f.full()
	case f.probe != 0:
		return f.heartbeat(f.server.latest.Load())
	}
	return nil
}

// full tells everything.
func (f *follower) full() error {
	f.seen = f.server.latest.Load()
	f.told, f.sent = f.seen.parts, time.Now()
	f.news = f.sent
	if err := f.send(&pb.HealthResponse{Event: &pb.HealthResponse_Full{Full: f.seen.report}}); err != nil {
		return err
	}
	f.prefixes.forget()
	return f.tellPrefixes()
}

// tell sends what changed since the last message, if it is urgent or due, a heartbeat when that is due, and then which cached
// prefixes came and went, at the scheduler's interval.
func (f *follower) tell() error {
	if err := f.tellReport(); err != nil || time.Since(f.prefixes.asked) < f.interval {
		return err
	}
	return f.tellPrefixes()
}

// tellPrefixes sends which cached prefixes came and went since it was asked last.
func (f *follower) tellPrefixes() error {
	models := f.seen.report.GetModels()
	listed := func(name, digest string) bool {
		return slices.ContainsFunc(models, func(m *pb.ModelStatus) bool { return m.GetName() == name && m.GetModelDigest() == digest })
	}
	for _, keys := range f.prefixes.changes(f.server.cached(), listed) {
		if err := f.send(&pb.HealthResponse{Event: &pb.HealthResponse_PrefixKeys{PrefixKeys: keys}}); err != nil {
			return err
		}
	}
	return nil
}

// tellReport sends what changed of the report, or a heartbeat. Ages alone are no reason to send them before those that were told are
// old: a fleet that does nothing costs its schedulers heartbeats. A worker that cannot look at itself, as behind a driver
// that does not return, sends none: what it knew may hold no longer, and its silence tells schedulers so.
func (f *follower) tellReport() error {
	f.seen = f.server.latest.Load()
	silent := time.Since(f.sent)
	switch is := f.seen.parts; {
	case is.urgent != f.told.urgent,
		(is.counts != f.told.counts || is.readings != f.told.readings) && silent >= min(f.interval, freshness),
		is.ages != f.told.ages && time.Since(f.news) >= freshness:
		d := f.seen.delta(f.told)
		f.told, f.sent = is, time.Now()
		f.news = f.sent
		return f.send(&pb.HealthResponse{Event: &pb.HealthResponse_Delta{Delta: d}})
	case silent >= f.interval && time.Since(f.seen.at) > blind:
		f.held = time.Now()
	case silent >= f.interval:
		f.sent = time.Now()
		return f.heartbeat(f.seen)
	}
	return nil
}

func (f *follower) heartbeat(s *snapshot) error {
	beat := &pb.Heartbeat{Progress: s.report.GetProgress()}
	return f.send(&pb.HealthResponse{Event: &pb.HealthResponse_Heartbeat{Heartbeat: beat}})
}

func (f *follower) send(r *pb.HealthResponse) error {
	f.sequence++
	r.Sequence, r.Probe = f.sequence, f.probe
	f.probe = 0
	return f.stream.Send(r)
}

// arm sets when tell looks next. Where numbers may be sent and there were no new ones, or a heartbeat was held back, that is a pulse
// later; cached prefixes are looked for at the interval.
func (f *follower) arm() {
	silent := time.Since(f.sent)
	wait := min(f.interval, freshness) - silent
	if wait <= 0 {
		wait = min(pulse, max(f.interval-silent, 0))
	}
	f.due.Reset(max(min(wait, f.interval-time.Since(f.prefixes.asked)), pulse-time.Since(f.held), 0))
}
