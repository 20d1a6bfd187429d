// Package stats is the arithmetic of measurements: medians with their spread, and histograms of durations with their
// percentiles.
//
// SpreadOf sums up repeats of one figure; a Histogram takes any number of durations in fixed memory and answers
// quantiles within a thousandth. Everything is a function of what was added; there is no clock here, and nothing is
// safe for concurrent use.
package stats
