// Package fault is the one place where the scheduler's refusals become statuses: the table from the sentinels of route,
// admission and place to codes and reasons.
//
// A worker's own status never comes through here: it passes unchanged, with the worker's domain.
package fault
