package server

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/fault"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/relay"
)

// Bounds of the contract.
const (
	minWatch = 100 * time.Millisecond
	maxWatch = time.Hour
	// maxGenerations bounds a message of the watch, and how long calls wait while it is put together.
	maxGenerations = 1000
	// defaultWatch keeps what a watcher was told last within 2 s of the device: a reading is up to 1.45 s old when it gets here,
	// 1 s of that at the engine, two pulses of its worker, and the interval that this process asks workers for.
	defaultWatch = 500 * time.Millisecond
)

// WatchFleet streams the fleet: at once, then when anything changed, at most once an interval.
func (s *Server) WatchFleet(in *pb.WatchFleetRequest, stream grpc.ServerStreamingServer[pb.WatchFleetResponse]) error {
	interval := defaultWatch
	if in.GetInterval() != nil {
		interval = in.GetInterval().AsDuration()
		if err := in.GetInterval().CheckValid(); err != nil || interval < minWatch || interval > maxWatch {
			return fault.Invalid(fmt.Sprintf("interval is %v: must be in [%v, %v]", interval, minWatch, maxWatch),
				rpc.Violation{Field: "interval", Description: fmt.Sprintf("must be in [%v, %v]", minWatch, maxWatch)})
		}
	}
	if in.GetMaxGenerations() > maxGenerations {
		return fault.Invalid(fmt.Sprintf("max_generations is %d: must be in [0, %d]", in.GetMaxGenerations(), maxGenerations),
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
		if now := fingerprint(members); now != sent || max(running, before) > 0 { // what runs gets older
			out := &pb.WatchFleetResponse{
				Workers: describe(members, time.Now()), Generations: tellGenerations(generations, time.Now()), GenerationsUnderWay: uint32(running),
			}
			if err := stream.Send(out); err != nil {
				return err
			}
			sent = now
		}
		select {
		case <-ticker.C:
		case <-rpc.Draining(stream.Context()):
			return fault.Stopped()
		case <-stream.Context().Done():
			return fault.Status(context.Cause(stream.Context()))
		}
	}
}

// tellGenerations tells generations as of now.
func tellGenerations(generations []relay.Generation, now time.Time) []*pb.FleetGeneration {
	out := make([]*pb.FleetGeneration, len(generations))
	for i, g := range generations {
		out[i] = &pb.FleetGeneration{
			RequestId: g.ID, Model: g.Model, WorkerId: g.Worker, Tokens: uint64(g.Tokens), Age: durationpb.New(now.Sub(g.Arrived)),
		}
	}
	return out
}

// inFlight are this process's requests on a member, token streams and calls of vectors.
func inFlight(m *fleet.Member) int64 { return m.Load.InFlight() + m.Load.Vectors.UnderWay() }

// fingerprint differs when anything that describe tells has changed, ages aside.
func fingerprint(members []fleet.Member) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%d;", len(members)) // an empty fleet is told too
	for i := range members {
		m := &members[i]
		fmt.Fprintf(&out, "%s %v %s %p %d %d %d;", m.Address, m.Connected, m.Problem, m.Report, m.LastMessage.UnixNano(),
			inFlight(m), m.Load.Tokens())
	}
	return out.String()
}

// describe tells members as of now.
func describe(members []fleet.Member, now time.Time) []*pb.FleetWorker {
	out := make([]*pb.FleetWorker, 0, len(members))
	for i := range members {
		m := &members[i]
		w := &pb.FleetWorker{
			Address: m.Address, Connected: m.Connected, Problem: m.Problem, Report: m.Report,
			InFlight: uint32(max(inFlight(m), 0)), OutstandingTokens: uint64(max(m.Load.Tokens(), 0)),
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
