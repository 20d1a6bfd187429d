// Package cputest says which instruction-set path of the CPU engine tests run on.
//
// Tests that open the CPU engine ask Path, and those that start a program add Flags to its arguments: so the one variable
// MILLRACE_TEST_CPU_PATH forces every test from the engine to whole processes onto one path, and `make test-paths` runs
// them on each. Without it they run on the best path of the machine.
//
// It is for tests alone; it refuses to know engines, which say themselves what a path of theirs is.
package cputest
