package metrics

import (
	"github.com/millrace/millrace/services/internal/monitor"
	"github.com/millrace/millrace/services/scheduler/internal/admission"
)

// queueReadings are read from each model's queue.
var queueReadings = []monitor.Reading[admission.Stats]{
	{Name: "millrace_scheduler_waiting_requests", Kind: monitor.Gauge, Help: "Requests that wait for a slot on a worker: the queue's depth.",
		Read: func(s admission.Stats) float64 { return float64(s.Waiting) }},
	{Name: "millrace_scheduler_resuming_requests", Kind: monitor.Gauge, Help: "Streams that lost their worker and wait for another.",
		Read: func(s admission.Stats) float64 { return float64(s.Resuming) }},
	{Name: "millrace_scheduler_queue_age_seconds", Kind: monitor.Gauge, Help: "Time that the one of both which waits for longest has waited.",
		Read: func(s admission.Stats) float64 { return s.Oldest.Seconds() }},
	{Name: "millrace_scheduler_placed_attempts_total", Kind: monitor.Counter, Help: "Attempts that got a slot, those that move a stream included.",
		Read: func(s admission.Stats) float64 { return float64(s.Placed) }},
	{Name: "millrace_scheduler_queued_attempts_total", Kind: monitor.Counter, Help: "Of these, those that waited for it.",
		Read: func(s admission.Stats) float64 { return float64(s.Queued) }},
	{Name: "millrace_scheduler_shed_requests_total", Kind: monitor.Counter, Help: helpShed, Label: "cause", Value: "full",
		Read: func(s admission.Stats) float64 { return float64(s.Shed) }},
	{Name: "millrace_scheduler_shed_requests_total", Kind: monitor.Counter, Help: helpShed, Label: "cause", Value: "displaced",
		Read: func(s admission.Stats) float64 { return float64(s.Displaced) }},
	{Name: "millrace_scheduler_shed_requests_total", Kind: monitor.Counter, Help: helpShed, Label: "cause", Value: "late",
		Read: func(s admission.Stats) float64 { return float64(s.Late) }},
	{Name: "millrace_scheduler_shed_requests_total", Kind: monitor.Counter, Help: helpShed, Label: "cause", Value: "timeout",
		Read: func(s admission.Stats) float64 { return float64(s.Expired) }},
	{Name: "millrace_scheduler_left_requests_total", Kind: monitor.Counter, Help: "Requests whose callers went while they waited.",
		Read: func(s admission.Stats) float64 { return float64(s.Left) }},
}

const helpShed = "Requests refused by the queue. full: the queue was full; displaced: another request displaced them; late: they would have missed " +
	"their deadline; timeout: they had waited for --max-queue-time."

// add returns the sum of the queues of two models.
func add(a, b admission.Stats) admission.Stats {
	a.Waiting, a.Resuming, a.Oldest = a.Waiting+b.Waiting, a.Resuming+b.Resuming, max(a.Oldest, b.Oldest)
	a.Placed, a.Queued = a.Placed+b.Placed, a.Queued+b.Queued
	a.Shed, a.Displaced, a.Late = a.Shed+b.Shed, a.Displaced+b.Displaced, a.Late+b.Late
	a.Expired, a.Left = a.Expired+b.Expired, a.Left+b.Left
	return a
}
