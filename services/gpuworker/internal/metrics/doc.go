// Package metrics exports a worker's metrics and answers its probes. Package monitor serves both by
// HTTP.
//
// New makes the metrics. LoopObservers returns the observers with which the step loops of models
// update their series, and Page returns the content of a monitor.Page. All other metrics are read
// at a scrape: counters and gauges from the loops' atomic counters, readings of the device from the
// worker's last assessment. So a scrape waits for no step, for no lock that a loop holds during
// one, and for no driver, and a loop waits for no scrape.
//
// A metric has no label except the model's name and words of fixed sets. The series of a model end
// when it is unloaded, so that the length of a scrape is bounded by the loaded models.
package metrics
