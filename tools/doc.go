// Package tools pins the programs that build and check the repository.
//
// The tool directives in go.mod name them and their versions; `make tools`
// installs them into build/tools, and each make target installs what it uses.
//
// The module is apart from the product's: no version chosen here can reach a
// shipped binary.
package tools
