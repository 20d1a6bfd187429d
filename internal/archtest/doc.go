// Package archtest checks the rules of the source tree, each with its reason.
//
// `go test ./internal/archtest` lists the module's packages once. It checks which package may
// import which, where cgo, the environment and process exit may be used, that every package has a
// package comment, and how long a file may be. A rule is one row of a table: the packages that it
// binds, what it forbids, and the reason.
//
// The package has only tests, and does not know what other packages do.
package archtest
