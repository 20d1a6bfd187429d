// Package ollama is the dialect of Ollama's HTTP API, because editors and apps look for it: chat,
// generate, embed, and what they read to find models. Models are loaded and removed with millrace,
// not over this API.
//
// Each field of a request is honoured, refused with its JSON path, or skipped and named in a header;
// docs/http.md has the table. Streams are JSON objects, one a line.
//
//	request.go  chat and generate requests, and their translation to the contract
//	options.go  their sampling options
//	reply.go    their answers
//	models.go   models and the version
//	embed.go    embeddings
package ollama
