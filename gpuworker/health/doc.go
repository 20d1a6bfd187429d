// Package health judges a worker: from what its models, step loops and device report to a state and named checks.
//
// Assess is pure: it is given states, counts and ages. What is not known is not judged: its check is left out. It refuses to
// know clocks, calls, and how any number was come by.
package health
