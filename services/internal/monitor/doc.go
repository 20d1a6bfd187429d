// Package monitor is what the processes share to be watched: a small HTTP server on a port of its own, and the means to describe
// measures once and to read them when somebody scrapes.
//
// A process describes its measures as Readings, which are read at each scrape, registers collectors of them together with Calls, which
// counts the calls of its gRPC server, and runs Serve with a Page of them. Aliased gives some of them once more under the names that
// dashboards of other servers know. Names bounds how many values a label has. Profiles is the page of pprof.
//
// The package knows no measure but those of calls, no model and no worker.
package monitor
