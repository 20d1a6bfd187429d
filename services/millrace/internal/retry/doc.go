// Package retry repeats calls that failed for a reason that may pass: another attempt may reach
// another worker, or the same worker when it has room.
//
// It decides by the status alone, so only calls without side effects may be repeated.
package retry
