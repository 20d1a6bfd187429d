// Package anthropic is the dialect of Anthropic's HTTP API: messages, whole and as a stream, and
// the count of their tokens.
//
// A request type has every field of the published API. Each field is honoured, refused with its JSON
// path, or skipped and named in a header; docs/http.md has the table.
//
//	request.go  the requests, and their translation to the contract
//	reply.go    the answer, whole and as events
//	dialect.go  routes, and errors in Anthropic's shape
package anthropic
