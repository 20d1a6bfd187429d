// Package translate has the code that dialects share to translate requests to the contract and
// its answers back: seeds, tenants and priorities, the origin of an answer, and the JSON paths of
// fields that a server refused.
//
// The package does not depend on a dialect.
package translate
