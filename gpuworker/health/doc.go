// Package health judges a worker: from what its models and step loops report to a state and named checks.
//
// Assess is pure. It knows states and ages; it refuses to know clocks, devices and calls.
package health
