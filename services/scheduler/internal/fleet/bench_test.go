package fleet

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// crowd returns a fleet of workers that have reported, without sockets.
func crowd(b *testing.B, workers int) (*Fleet, []*playedSession) {
	b.Helper()
	f, err := New(Config{Dial: func(string) (*grpc.ClientConn, error) { return nil, errors.New("no network") }}, hclog.NewNullLogger())
	if err != nil {
		b.Fatal(err)
	}
	var sessions []*playedSession
	for i := range workers {
		m := newMember(fmt.Sprintf("10.0.%d.%d:7071", i/256, i%256), tracker{})
		s := &playedSession{m: m, link: newLink(nil, nil, f.cfg)}
		f.mu.members[m.address] = m
		sessions = append(sessions, s)
		m.begin()
		f.apply(m, s.link, &pb.HealthResponse{Sequence: 1, Event: &pb.HealthResponse_Full{Full: reportOf(i)}}, time.Now(), &s.probe)
	}
	f.mu.order = sorted(f.mu.members)
	f.publish()
	return f, sessions
}

func reportOf(i int) *pb.WorkerReport {
	r := &pb.WorkerReport{
		WorkerId: fmt.Sprintf("worker-%d", i), Incarnation: "i1", ClassId: "class", State: pb.WorkerState_WORKER_STATE_READY,
		Device: &pb.DeviceStatus{}, Load: &pb.LoadStatus{}, Progress: progressed(1),
	}
	for j := range 4 {
		name := fmt.Sprintf("model-%d", j)
		r.Models = append(r.Models, &pb.ModelStatus{Name: name, ModelDigest: "d", State: pb.ModelState_MODEL_STATE_READY, ClassId: "class"})
		r.Files = append(r.Files, &pb.ModelFile{Name: name})
		r.Load.Models = append(r.Load.Models, &pb.ModelLoad{Name: name})
	}
	return r
}

func progressed(steps uint64) *pb.StepProgress {
	return &pb.StepProgress{Steps: steps, LastStepAge: durationpb.New(time.Second), StepBound: durationpb.New(1500 * time.Millisecond)}
}

// events returns the messages of a health stream after the first.
var events = map[string]*pb.HealthResponse{
	"a heartbeat": {Event: &pb.HealthResponse_Heartbeat{Heartbeat: &pb.Heartbeat{Progress: progressed(2)}}},
	"readings": {Event: &pb.HealthResponse_Delta{Delta: &pb.WorkerDelta{
		ReadingsOnly: true, Load: &pb.LoadStatus{Running: 1}, Device: &pb.DeviceStatus{}, Progress: progressed(2)}}},
	"a load": {Event: &pb.HealthResponse_Delta{Delta: &pb.WorkerDelta{Load: &pb.LoadStatus{Running: 1}, Progress: progressed(2)}}},
}

// BenchmarkMessage measures one message of a health stream after the transport. Its yardstick is to
// decode the message.
func BenchmarkMessage(b *testing.B) {
	for name, event := range events {
		wire, err := proto.Marshal(event)
		if err != nil {
			b.Fatal(err)
		}
		b.Run("decode "+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := proto.Unmarshal(wire, &pb.HealthResponse{}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("take "+name, func(b *testing.B) {
			f, sessions := crowd(b, 300)
			now := time.Now()
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				s := sessions[i%len(sessions)]
				event.Sequence = s.m.mu.tracker.sequence + 1
				if did := f.apply(s.m, s.link, event, now, &s.probe); did.end != nil {
					b.Fatal(did.end)
				}
			}
		})
	}
}

// BenchmarkPublish measures a snapshot of 300 workers of which some have changed. At most 500 a
// second are made.
func BenchmarkPublish(b *testing.B) {
	for _, changed := range []int{1, 30, 300} {
		b.Run(fmt.Sprintf("%d changed of 300", changed), func(b *testing.B) {
			f, sessions := crowd(b, 300)
			b.ReportAllocs()
			for b.Loop() {
				for _, s := range sessions[:changed] {
					s.m.mu.changed = true
				}
				f.publish()
			}
		})
	}
}

// BenchmarkTick measures a tick of 300 links. There are about four ticks a second.
func BenchmarkTick(b *testing.B) {
	_, sessions := crowd(b, 300)
	b.ReportAllocs()
	for b.Loop() {
		for _, s := range sessions {
			s.link.reported.Store(true)
			s.link.tick()
		}
	}
}
