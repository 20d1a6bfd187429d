// Package monitor serves a process's metrics, probes and profiles over HTTP on ports of their own,
// and has the types that describe metrics once and read them at each scrape.
//
// A process describes its metrics as Readings, registers collectors of them together with Calls,
// which counts the calls of its gRPC server, and runs Serve with a Page. Text and Rest bound the
// values of labels. Profiles serves pprof.
//
// The package knows no metrics but those of calls, no model and no worker.
package monitor
