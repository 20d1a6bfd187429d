// Package load sends requests to a server and measures latency, throughput and errors.
//
// A Maker makes requests of random token ids or of one text. A Generator makes the calls: Closed
// keeps a number of calls running, and Open starts calls at given times whether earlier ones have
// ended or not. Both report to a Recorder, whose Report has the latencies, the throughput, and the
// errors by code and reason. In an open loop a latency counts from the time when the request was
// due, so that a server that falls behind cannot hide it.
//
// MeasureCeiling measures the generator itself, and WatchIdle reads from a worker's metrics how
// long its device had no step.
//
// A Service is a loaded model under one of four loads of its own: Prefix, Cancel, Overload and
// Fairness check promises other than speed, from the outcomes of calls and from the worker's health
// reports.
package load
