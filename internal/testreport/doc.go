// Command testreport reads the events of "go test -json" from standard input and prints what "go
// test" prints: a line for each package, and all output of a test that failed. At its end it lists
// the tests that were skipped for want of a tool, and one command that installs what is missing,
// because go test itself says nothing of a skipped test in a package that passes.
//
// Usage: go test -json ./... | go run ./internal/testreport
package main
