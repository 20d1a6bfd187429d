// Package fault is the one place where the scheduler's refusals become statuses: their reasons, and the table from the
// sentinels of route, place and fleet to codes.
//
// A worker's own status never comes through here: it passes unchanged, with the worker's domain.
package fault
