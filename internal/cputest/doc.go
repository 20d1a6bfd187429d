// Package cputest selects the instruction-set path of the CPU engine for tests.
//
// Tests that open the CPU engine use Path, and those that start a program add Flags to its
// arguments. So the variable MILLRACE_TEST_CPU_PATH forces all tests, from the engine to whole
// processes, onto one path, and `make test-paths` runs them on each. Without it they use the best
// path of the machine.
//
// The package is for tests only. It does not know which paths exist: the engine refuses unknown
// ones.
package cputest
