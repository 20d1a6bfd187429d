// Package repotest finds files of the repository for tests, and has the flag -update of tests that
// compare files with the output of the code.
//
// Path returns the path of a file. If Update is set, a test writes the file instead of comparing
// it. Several packages compare files, and a test program may link more than one of them, so the
// flag is defined here once.
package repotest
