package metrics

import (
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/monitor"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
)

// whole is the state of the whole scheduler at one scrape.
type whole struct {
	ready                    bool
	members                  []fleet.Member
	events                   fleet.Events
	loaded, failed           uint64
	vectorCalls, vectorBytes int64
}

// fleetReadings are read from it.
var fleetReadings = []monitor.Reading[*whole]{
	{Name: "millrace_scheduler_ready", Kind: monitor.Gauge, Help: "1 while the scheduler is ready for requests, else 0.",
		Read: func(w *whole) float64 { return monitor.Truth(w.ready) }},
	{Name: "millrace_scheduler_workers", Kind: monitor.Gauge, Help: helpWorkers, Label: "state", Value: "lost",
		Read: func(w *whole) float64 { return w.count(func(m *fleet.Member) bool { return !m.Connected }) }},
	{Name: "millrace_scheduler_workers", Kind: monitor.Gauge, Help: helpWorkers, Label: "state", Value: "starting",
		Read: inState(pb.WorkerState_WORKER_STATE_STARTING)},
	{Name: "millrace_scheduler_workers", Kind: monitor.Gauge, Help: helpWorkers, Label: "state", Value: "ready",
		Read: inState(pb.WorkerState_WORKER_STATE_READY)},
	{Name: "millrace_scheduler_workers", Kind: monitor.Gauge, Help: helpWorkers, Label: "state", Value: "degraded",
		Read: inState(pb.WorkerState_WORKER_STATE_DEGRADED)},
	{Name: "millrace_scheduler_workers", Kind: monitor.Gauge, Help: helpWorkers, Label: "state", Value: "draining",
		Read: inState(pb.WorkerState_WORKER_STATE_DRAINING)},
	{Name: "millrace_scheduler_workers", Kind: monitor.Gauge, Help: helpWorkers, Label: "state", Value: "not_ready",
		Read: inState(pb.WorkerState_WORKER_STATE_NOT_READY)},
	{Name: "millrace_scheduler_duplicate_workers", Kind: monitor.Gauge,
		Help: "Addresses that get no requests because another process at another address has the same worker_id.",
		Read: func(w *whole) float64 { return w.count(func(m *fleet.Member) bool { return m.Duplicate }) }},
	{Name: "millrace_scheduler_health_resyncs_total", Kind: monitor.Counter,
		Help: "Full reports requested because messages of a worker's health stream were missed.",
		Read: func(w *whole) float64 { return float64(w.events.Resyncs) }},
	{Name: "millrace_scheduler_health_streams_ended_total", Kind: monitor.Counter, Help: helpEnds, Label: "cause", Value: "unreached",
		Read: func(w *whole) float64 { return float64(w.events.Unreached) }},
	{Name: "millrace_scheduler_health_streams_ended_total", Kind: monitor.Counter, Help: helpEnds, Label: "cause", Value: "silent",
		Read: func(w *whole) float64 { return float64(w.events.Silent) }},
	{Name: "millrace_scheduler_health_streams_ended_total", Kind: monitor.Counter, Help: helpEnds, Label: "cause", Value: "stalled",
		Read: func(w *whole) float64 { return float64(w.events.Stalled) }},
	{Name: "millrace_scheduler_health_streams_ended_total", Kind: monitor.Counter, Help: helpEnds, Label: "cause", Value: "disbelieved",
		Read: func(w *whole) float64 { return float64(w.events.Disbelieved) }},
	{Name: "millrace_scheduler_health_streams_ended_total", Kind: monitor.Counter, Help: helpEnds, Label: "cause", Value: "closed",
		Read: func(w *whole) float64 { return float64(w.events.Closed) }},
	{Name: "millrace_scheduler_model_loads_total", Kind: monitor.Counter, Help: helpLoads, Label: "result", Value: "loaded",
		Read: func(w *whole) float64 { return float64(w.loaded) }},
	{Name: "millrace_scheduler_model_loads_total", Kind: monitor.Counter, Help: helpLoads, Label: "result", Value: "failed",
		Read: func(w *whole) float64 { return float64(w.failed) }},
	{Name: "millrace_scheduler_vector_calls", Kind: monitor.Gauge, Help: "Calls of vectors under way that count against --max-vector-calls.",
		Read: func(w *whole) float64 { return float64(w.vectorCalls) }},
	{Name: "millrace_scheduler_vector_bytes", Kind: monitor.Gauge, Help: "Bytes of messages that these are counted with.",
		Read: func(w *whole) float64 { return float64(w.vectorBytes) }},
}

const (
	helpWorkers = "Addresses of workers by state. lost: no health stream is up, or another address is the same worker's."
	helpEnds    = "Health streams of workers that are still followed, by why they ended. unreached: before a report came; silent, stalled " +
		"(a step hangs) and disbelieved (it contradicts itself): given up with every request there."
	helpLoads = "Loads of models requested by calls or on demand, by their result; failed: at least one copy was not loaded."
)

// count returns the number of members that match.
func (w *whole) count(matches func(*fleet.Member) bool) float64 {
	n := 0
	for i := range w.members {
		if matches(&w.members[i]) {
			n++
		}
	}
	return float64(n)
}

func inState(s pb.WorkerState) func(*whole) float64 {
	return func(w *whole) float64 {
		return w.count(func(m *fleet.Member) bool { return m.Connected && m.Report.GetState() == s })
	}
}
