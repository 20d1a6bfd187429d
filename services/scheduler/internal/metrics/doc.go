// Package metrics collects a scheduler's metrics and answers its probes. Package monitor serves
// both over HTTP.
//
// New makes the metrics, which are the relay's Observer: events of a generation update the series
// of its model, and relaying a frame costs one atomic addition. Everything else is read at each
// scrape: the fleet's latest snapshot, and the counters of queues and loader.
//
// Callers cannot create labels. A model has series while a worker reports it, and a worker while
// the scheduler follows it. Both are bounded: series beyond the bound are summed under one name, or
// only counted for the fleet as a whole. The metrics document in docs/ lists every metric.
package metrics
