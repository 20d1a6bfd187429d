// Package metrics is what a scheduler measures, and how it answers probes; package monitor serves both by HTTP.
//
// New makes the measures, which are the relay's Observer: what happens to a generation is added to its model's series, and to relay a
// frame costs no more than one atomic addition. Everything else is read when somebody scrapes: the fleet's latest snapshot, the queues'
// and the loader's own counters.
//
// What a caller sends becomes no label. A model has series while a worker reports it, a worker while it is followed, and neither is ever
// more than a bound: what is beyond it is added up under one name, or left to the counts of the fleet as a whole. docs/measures.md lists
// every measure.
package metrics
