// Package archtest holds the rules of the source tree as tests, each with its reason.
//
// `go test ./internal/archtest` lists the module's packages once and checks which package may reach which, where cgo,
// the environment and process exit may be used, that every package says what it is, and how long a file may be. A rule
// is one row of a table: the packages it binds, what it forbids them, and because of what.
//
// It has no product code and refuses to know what the packages do.
package archtest
