// Package metrics is what a worker measures, and how it answers probes; package monitor serves both by HTTP.
//
// New makes the measures; Observe gives each model's step loop the ones that it tells itself, and Page is what there is to serve.
// Everything else is read when somebody scrapes: counters and gauges from the loops' own atomic counters, the device's readings from
// the worker's last look at itself. So a scrape waits for no step, no lock that a loop holds during one, and no driver; and a loop
// waits for no scrape.
//
// docs/measures.md lists every measure. A measure has no label but the model's name, and words of fixed sets; what belongs to
// a model goes with it when it is unloaded, so that a scrape is never longer than what is loaded.
package metrics
