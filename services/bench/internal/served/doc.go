// Package served measures what a server of the contract promises beside speed: that a prefix is computed once, that a cancelled
// call costs nothing more, that too many calls end well, and that tenants share.
//
// Prefix, Cancel, Overload and Fairness each put a Service under its load and give a report. A report whose Err is not nil says
// that a promise was broken, which has nothing to do with time; how long things took is told, and judged by floors alone.
//
// It knows the contract and clocks. It asks like any client; what a worker holds it reads from the worker's own health reports.
package served
