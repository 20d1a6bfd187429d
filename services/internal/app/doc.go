// Package app is the skeleton that scheduler, worker and gateway share: the command line and its
// exit codes, the flags that all have, the logger, the listeners, TLS and keys,
// telemetry, metrics, and an ordered start and shutdown.
//
// A program registers Flags, calls Open with them, makes its server (of gRPC: NewServer), starts its
// background tasks with Go and ServeMetrics, and calls Serve. A shutdown runs in this order:
//
//	a signal, or a task that failed
//	  -> Context ends; the server drains: new calls are refused, running calls end or are cut off
//	  -> the closers that Serve was given run one after another
//	  -> the context of the tasks ends, and Serve waits for them: until then they see the draining calls
//	  -> Close closes listeners that were never served, and sends the last telemetry
//
// The package knows neither models nor workers.
package app
