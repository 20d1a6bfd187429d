package metrics

import (
	"time"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/monitor"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
)

// maxWorkers bounds the workers that have series of their own: those with the first addresses.
const maxWorkers = 1024

// memberLabels identify a worker. Two addresses may lead to one worker, and one of them is
// connected.
var memberLabels = []string{"worker_id", "address"}

// workerReadings are read from the last report of each worker.
var workerReadings = []monitor.Reading[*fleet.Member]{
	{Name: "millrace_scheduler_worker_up", Kind: monitor.Gauge, Help: "1 while the worker's health stream is up, else 0.",
		Read: func(m *fleet.Member) float64 { return monitor.Truth(m.Connected) }},
	{Name: "millrace_scheduler_worker_serves", Kind: monitor.Gauge, Help: "1 while the worker gets requests, else 0.",
		Read: func(m *fleet.Member) float64 { return monitor.Truth(m.Connected && serves(m.Report.GetState())) }},
	{Name: "millrace_scheduler_worker_message_age_seconds", Kind: monitor.Gauge, Help: "Time since the worker's last message.",
		Read: func(m *fleet.Member) float64 { return time.Since(m.LastMessage).Seconds() }},
	{Name: "millrace_scheduler_worker_round_trip_seconds", Kind: monitor.Gauge, Help: "Time of a message to the worker and back.",
		Read: func(m *fleet.Member) float64 {
			if m.RoundTrip == 0 {
				return monitor.Unknown
			}
			return m.RoundTrip.Seconds()
		}},
	{Name: "millrace_scheduler_worker_requests", Kind: monitor.Gauge, Help: "Requests that this scheduler has under way there.",
		Read: func(m *fleet.Member) float64 { return float64(m.Load.InFlight()) }},
	{Name: "millrace_scheduler_worker_running_sequences", Kind: monitor.Gauge, Help: "Sequences in its batches, from all senders.",
		Read: func(m *fleet.Member) float64 { return float64(m.Report.GetLoad().GetRunning()) }},
	{Name: "millrace_scheduler_worker_waiting_sequences", Kind: monitor.Gauge, Help: "Sequences that wait there for a slot.",
		Read: func(m *fleet.Member) float64 { return float64(m.Report.GetLoad().GetWaiting()) }},
	{Name: "millrace_scheduler_worker_waiting_prompt_tokens", Kind: monitor.Gauge, Help: "Prompt tokens that it has not computed yet.",
		Read: func(m *fleet.Member) float64 { return float64(m.Report.GetLoad().GetWaitingPrefillTokens()) }},
	{Name: "millrace_scheduler_worker_kv_blocks", Kind: monitor.Gauge, Help: helpBlocks, Label: "state", Value: "free",
		Read: func(m *fleet.Member) float64 { return float64(m.Report.GetLoad().GetFreeBlocks()) }},
	{Name: "millrace_scheduler_worker_kv_blocks", Kind: monitor.Gauge, Help: helpBlocks, Label: "state", Value: "held",
		Read: func(m *fleet.Member) float64 {
			l := m.Report.GetLoad()
			return float64(l.GetTotalBlocks() - min(l.GetFreeBlocks(), l.GetTotalBlocks()))
		}},
	{Name: "millrace_scheduler_worker_device_memory_limit_bytes", Kind: monitor.Gauge, Help: "Device memory that it may use.",
		Read: func(m *fleet.Member) float64 { return float64(m.Report.GetDevice().GetBytesTotal()) }},
	{Name: "millrace_scheduler_worker_device_memory_free_bytes", Kind: monitor.Gauge, Help: "Device memory that it may still take.",
		Read: func(m *fleet.Member) float64 { return float64(m.Report.GetDevice().GetBytesFree()) }},
	{Name: "millrace_scheduler_worker_models", Kind: monitor.Gauge, Help: "Models that are on its device or on their way.",
		Read: func(m *fleet.Member) float64 { return float64(len(m.Report.GetModels())) }},
}

const helpBlocks = "KV blocks of all its models by state, of a model with a window group scaled by its fuller group; " +
	"free ones may hold prefixes that are given up when others need them."

// serves reports whether a worker in this state accepts requests.
func serves(s pb.WorkerState) bool {
	return s == pb.WorkerState_WORKER_STATE_READY || s == pb.WorkerState_WORKER_STATE_DEGRADED
}
