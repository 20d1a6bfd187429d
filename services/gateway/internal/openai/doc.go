// Package openai is the dialect of OpenAI's HTTP API: chat completions, completions, models and
// embeddings, and vLLM's tokenize and detokenize.
//
// A request type has every field of the published API and the extensions that clients of vLLM send.
// Each field is honoured, refused with its JSON path, or skipped and named in a header; docs/http.md
// has the table. The types are written by hand: those generated from the published schema are
// unions of unions in several thousand lines, lose the difference between null and unset, and do
// not have the extensions. Answers are written by hand as well, because a stream writes one object
// for each token: all but its text is the same.
//
//	request.go     fields that chat and completions share, and their translation to the contract
//	chat.go        POST /v1/chat/completions
//	chunks.go      its answer, whole and as events
//	completion.go, completionreply.go  the same of POST /v1/completions
//	logprobs.go    texts of tokens next to their logprobs
//	failure.go     errors in OpenAI's shape
package openai
