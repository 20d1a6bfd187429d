// Package tokenizer turns text into token ids and back, as the vocabulary inside a model file prescribes.
//
// New reads the vocabulary from a Source, which gguf.Metadata satisfies, and refuses one that is damaged or of an unknown
// kind. Tokenizer.Encode and Tokenizer.Decode work on whole texts; Tokenizer.NewDecoder returns a Decoder that takes ids
// one at a time and gives back valid UTF-8 as soon as a character is complete. A Tokenizer is immutable and safe for
// concurrent use; a Decoder belongs to one goroutine.
//
// Two kinds of vocabulary are served: byte-level BPE (tokenizer.ggml.model "gpt2") with the pre-tokenizers listed in
// Pretokenizers, and SentencePiece BPE by scores with byte fallback ("llama").
//
// The package knows nothing of files, models, sampling or chat templates.
package tokenizer
