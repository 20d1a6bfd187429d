// Package scripttest runs golden scripts: text files in testdata that contain commands and their
// results.
//
// A package calls Run from one test, with a function that executes the commands of a file and
// returns the file with the actual results. `go test -run TestScripts -update` writes them. The
// package does not interpret the commands.
package scripttest
