package server

import (
	"errors"
	"io"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

const (
	minHealthInterval     = 250 * time.Millisecond
	defaultHealthInterval = time.Second
)

// Health implements WorkerService: a full report at once, deltas when something changes, heartbeats at the wanted
// interval. When the worker stops, the stream goes on until its running requests have ended.
func (s *Server) Health(stream grpc.BidiStreamingServer[pb.HealthRequest, pb.HealthResponse]) error {
	requests, ended := make(chan *pb.HealthRequest, 1), make(chan error, 1)
	go func() {
		for {
			in, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			select {
			case requests <- in:
			case <-stream.Context().Done():
				return
			}
		}
	}()
	f := &follower{server: s, stream: stream, interval: defaultHealthInterval}
	if err := f.full(); err != nil {
		return err
	}
	tick := time.NewTicker(pulse)
	defer tick.Stop()
	draining := rpc.Draining(stream.Context())
	for {
		var err error
		select {
		case in := <-requests:
			err = f.request(in)
		case <-tick.C:
			if err = f.pulse(); err == nil && s.draining.Load() && f.last.GetLoad().GetRunning()+f.last.GetLoad().GetWaiting() == 0 {
				return nil
			}
		case <-draining:
			s.draining.Store(true)
			draining = nil
			err = f.pulse()
		case err = <-ended:
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return err
		}
		if err != nil {
			return err
		}
	}
}

// follower is one scheduler's health stream.
type follower struct {
	server   *Server
	stream   grpc.BidiStreamingServer[pb.HealthRequest, pb.HealthResponse]
	interval time.Duration
	sequence uint64
	probe    uint64
	asked    bool // a request has come
	last     *pb.WorkerReport
	sent     time.Time
}

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
		return f.full()
	case f.probe != 0:
		return f.send(&pb.HealthResponse{Event: &pb.HealthResponse_Heartbeat{
			Heartbeat: &pb.Heartbeat{Progress: progressOf(f.server.models.Loaded())},
		}})
	}
	return nil
}

func (f *follower) full() error {
	f.last = f.server.report()
	return f.send(&pb.HealthResponse{Event: &pb.HealthResponse_Full{Full: f.last}})
}

// pulse sends what changed since the last message: what routing needs at once, numbers that always move at the wanted
// interval.
func (f *follower) pulse() error {
	now := f.server.report()
	due := time.Since(f.sent) >= f.interval
	d, changed := difference(f.last, now, due)
	switch {
	case changed:
		d.Progress = now.GetProgress()
		f.last = now
		return f.send(&pb.HealthResponse{Event: &pb.HealthResponse_Delta{Delta: d}})
	case due:
		return f.send(&pb.HealthResponse{Event: &pb.HealthResponse_Heartbeat{Heartbeat: &pb.Heartbeat{Progress: now.GetProgress()}}})
	}
	return nil
}

func (f *follower) send(r *pb.HealthResponse) error {
	f.sequence++
	r.Sequence, r.Probe = f.sequence, f.probe
	f.probe = 0
	f.sent = time.Now()
	return f.stream.Send(r)
}

// difference is what a scheduler that has seen `was` must be told. Device and load are told when numbers is true.
func difference(was, now *pb.WorkerReport, numbers bool) (d *pb.WorkerDelta, changed bool) {
	d = &pb.WorkerDelta{}
	if was.GetState() != now.GetState() {
		d.State, changed = now.GetState(), true
	}
	if !slices.EqualFunc(was.GetChecks(), now.GetChecks(), sameCheck) {
		d.Checks, d.ChecksChanged, changed = now.GetChecks(), true, true
	}
	if !slices.EqualFunc(was.GetModels(), now.GetModels(), sameModel) {
		d.Models, d.ModelsChanged, changed = now.GetModels(), true, true
	}
	if !slices.EqualFunc(was.GetFiles(), now.GetFiles(), func(a, b *pb.ModelFile) bool { return proto.Equal(a, b) }) {
		d.Files, d.FilesChanged, changed = now.GetFiles(), true, true
	}
	if numbers && !proto.Equal(was.GetDevice(), now.GetDevice()) {
		d.Device, changed = now.GetDevice(), true
	}
	if numbers && !proto.Equal(was.GetLoad(), now.GetLoad()) {
		d.Load, changed = now.GetLoad(), true
	}
	if changed {
		d.Device, d.Load = now.GetDevice(), now.GetLoad()
	}
	return d, changed
}

// sameCheck leaves the message out: it tells an age.
func sameCheck(a, b *pb.HealthCheck) bool {
	return a.GetName() == b.GetName() && a.GetOk() == b.GetOk()
}

// sameModel leaves the age of the last check out, unless it has become younger.
func sameModel(a, b *pb.ModelStatus) bool {
	return a.GetName() == b.GetName() && a.GetState() == b.GetState() && a.GetModelDigest() == b.GetModelDigest() &&
		a.GetProblem() == b.GetProblem() && b.GetVerifiedAge().AsDuration() >= a.GetVerifiedAge().AsDuration()
}
