// Package scripttest runs golden scripts: text files of testdata in which commands stand with their outcomes.
//
// A package that has some calls Run from one test with a function that plays the commands of a file and writes them out again,
// each with the outcome that it has. `go test -run TestScripts -update` writes that into the files. It refuses to know what a
// command means.
package scripttest
