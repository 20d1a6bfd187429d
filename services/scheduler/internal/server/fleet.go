package server

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/loadreport"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/admission"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/relay"
	"github.com/millrace/millrace/services/scheduler/internal/rpcstatus"
)

// Bounds of the contract.
const (
	minWatch = 100 * time.Millisecond
	maxWatch = time.Hour
	// maxGenerations bounds a message of the watch, and the time for which making it locks the list
	// of calls.
	maxGenerations = 1000
	// defaultWatch keeps a watcher's readings of a device at most 2 s old. A reading is up to 1.45
	// s old when it arrives here: 1 s at the engine, two pulses of its worker, and the interval of
	// the fleet's heartbeats.
	defaultWatch = 500 * time.Millisecond
)

// WatchFleet streams the state of the fleet: at once, and then after every change, at most once an
// interval.
func (s *Server) WatchFleet(in *pb.WatchFleetRequest, stream grpc.ServerStreamingServer[pb.WatchFleetResponse]) error {
	interval := defaultWatch
	if in.GetInterval() != nil {
		interval = in.GetInterval().AsDuration()
		if err := in.GetInterval().CheckValid(); err != nil || interval < minWatch || interval > maxWatch {
			return rpcstatus.Invalid(fmt.Sprintf("interval is %v: must be in [%v, %v]", interval, minWatch, maxWatch),
				rpc.Violation{Field: "interval", Description: fmt.Sprintf("must be in [%v, %v]", minWatch, maxWatch)})
		}
	}
	if in.GetMaxGenerations() > maxGenerations {
		return rpcstatus.Invalid(fmt.Sprintf("max_generations is %d: must be in [0, %d]", in.GetMaxGenerations(), maxGenerations),
			rpc.Violation{Field: "max_generations", Description: fmt.Sprintf("must be in [0, %d]", maxGenerations)})
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	sent, running := "", 0
	for {
		members, before := s.fleet.Members(), running
		var generations []relay.Generation
		if in.MaxGenerations != nil {
			generations, running = s.relay.Generations(int(in.GetMaxGenerations()))
		}
		if now := s.fingerprint(members); now != sent || max(running, before) > 0 { // the ages of generations change
			out := &pb.WatchFleetResponse{
				Workers: s.describe(members, time.Now()), Generations: describeGenerations(generations, time.Now()), GenerationsUnderWay: uint32(running),
			}
			if err := stream.Send(out); err != nil {
				return err
			}
			sent = now
		}
		select {
		case <-ticker.C:
		case <-rpc.Draining(stream.Context()):
			return rpcstatus.Stopped()
		case <-stream.Context().Done():
			return rpcstatus.Of(context.Cause(stream.Context()))
		}
	}
}

// describeGenerations returns the messages of generations, with ages as of now.
func describeGenerations(generations []relay.Generation, now time.Time) []*pb.FleetGeneration {
	out := make([]*pb.FleetGeneration, len(generations))
	for i, g := range generations {
		out[i] = &pb.FleetGeneration{
			RequestId: g.ID, Model: g.Model, WorkerId: g.Worker, Tokens: uint64(g.Tokens), Age: durationpb.New(now.Sub(g.Arrived)),
		}
	}
	return out
}

// inFlight returns how many calls of this process a member serves.
func (s *Server) inFlight(m *fleet.Member) int64 { return m.Load.InFlight() + s.others(m) }

// fingerprint returns a string that changes with every field that describe reports, except for
// ages.
func (s *Server) fingerprint(members []fleet.Member) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%d;", len(members)) // an empty fleet is reported, too
	for i := range members {
		m := &members[i]
		fmt.Fprintf(&out, "%s %v %s %p %d %d %d;", m.Address, m.Connected, m.Problem, m.Report, m.LastMessage.UnixNano(),
			s.inFlight(m), m.Load.Tokens())
	}
	return out.String()
}

// describe returns the messages of members, with ages as of now.
func (s *Server) describe(members []fleet.Member, now time.Time) []*pb.FleetWorker {
	out := make([]*pb.FleetWorker, 0, len(members))
	for i := range members {
		m := &members[i]
		w := &pb.FleetWorker{
			Address: m.Address, Connected: m.Connected, Problem: m.Problem, Report: m.Report,
			InFlight: uint32(max(s.inFlight(m), 0)), OutstandingTokens: uint64(max(m.Load.Tokens(), 0)),
		}
		if !m.LastMessage.IsZero() {
			w.Age = durationpb.New(now.Sub(m.LastMessage))
		}
		if m.RoundTrip > 0 {
			w.RoundTrip = durationpb.New(m.RoundTrip)
		}
		out = append(out, w)
	}
	return out
}

// LoadOf returns the load of a scheduler: that of the connected workers, whichever scheduler or
// caller caused it, and the requests that wait here. A balancer in front of several schedulers of
// one fleet can distinguish them by the latter.
func LoadOf(s *fleet.Snapshot, queues []admission.Stats) (l loadreport.Load) {
	for i := range s.Members {
		m := &s.Members[i]
		if !m.Connected {
			continue
		}
		load := m.Report.GetLoad()
		l.HeldBlocks += int64(load.GetTotalBlocks()) - int64(min(load.GetFreeBlocks(), load.GetTotalBlocks()))
		l.KVBlocks += int64(load.GetTotalBlocks())
		l.Running += int64(load.GetRunning())
		l.Waiting += int64(load.GetWaiting())
		for _, model := range m.Report.GetModels() {
			l.Places += int64(model.GetLoaded().GetMaxSequences())
		}
		d := m.Report.GetDevice()
		l.MemoryLimit += d.GetBytesTotal()
		l.MemoryUsed += d.GetBytesTotal() - min(d.GetBytesFree(), d.GetBytesTotal())
	}
	for _, q := range queues {
		l.Waiting += int64(q.Waiting + q.Resuming)
	}
	return l
}
