// Package fault is the one place where the scheduler's own words become statuses: a table from the sentinels of route, admission
// and place to codes and reasons, and a function for what each other package says of a call, a load or a drain.
//
// A worker's own status never comes through here: it passes unchanged, with the worker's domain.
package fault
