// Package floor holds figures against the least that they may be, which a file for each kind of device says.
//
// A line of the file names a command of millrace-bench, a row of its table, a metric of that row, and the bound:
//
//	ops add/4096x4096 share >= 0.5
//
// Read reads the lines of one command, Set.Judge compares them with what was measured. A floor whose figure was not
// measured is missed: a benchmark that leaves rows out cannot pass by it. The package knows no device and no benchmark.
package floor
