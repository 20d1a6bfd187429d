// Package responses is the dialect of OpenAI's responses API, without its state: POST /v1/responses,
// whole and as a stream. Nothing is stored, so a client sends the whole conversation each time, as
// Codex does; fields that need a stored response are refused.
//
// A request type has every field of the published API. Each field is honoured, refused with its JSON
// path, or skipped and named in a header; docs/http.md has the table.
//
//	request.go  the request, and its translation to the contract
//	input.go    the items of the conversation
//	reply.go    the answer
//	events.go   the answer as numbered events
//
// Errors before an answer begins have the shape of package openai.
package responses
