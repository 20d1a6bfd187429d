// Package stats is the arithmetic of measurements: medians with their spread, histograms of
// durations, and floors.
//
// SpreadOf summarises repeats of one figure. A Histogram counts any number of durations in fixed
// memory and returns quantiles within a thousandth. Floors are the bounds that a file sets for the
// figures of a command, one in each line: command, row of its table, metric, bound.
//
//	ops add/4096x4096 share >= 0.5
//
// Floors.Judge compares them with the figures of a run. A floor whose figure was not measured
// counts as missed, because else a benchmark that leaves out rows would pass.
//
// Nothing here reads a clock, and nothing is safe for concurrent use.
package stats
