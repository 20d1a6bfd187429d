// Package health judges a worker: it turns what its models, step loops and device report into a
// state and named checks.
//
// Assess is a pure function of states, counts and ages. A check whose input is unknown is left out.
// The package has no clock and no knowledge of calls or of how a number was measured.
package health
