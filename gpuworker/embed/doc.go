// Package embed makes vectors and scores of texts on the step loop of a model: embeddings, and the
// scores of a reranker. A text is a sequence without generated tokens, which is batched with all
// others. It has no knowledge of messages or calls.
package embed
