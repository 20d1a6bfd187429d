// Package tokenizer turns text into token ids and back, as the vocabulary in a model file
// prescribes.
//
// New reads the vocabulary from a Source, which gguf.Metadata implements, and refuses one that is
// damaged or of an unknown kind. Tokenizer.Encode and Tokenizer.Decode process whole texts.
// Tokenizer.NewDecoder returns a Decoder that takes ids one at a time and returns valid UTF-8 as
// soon as a character is complete. A Tokenizer is immutable and safe for concurrent use; a Decoder
// belongs to one goroutine.
//
// Three kinds of vocabulary are supported: byte-level BPE (tokenizer.ggml.model "gpt2") with the
// pre-tokenizers of pretokenizer.go, SentencePiece BPE by scores with byte fallback ("llama"), and
// the same with merges in place of scores ("gemma4").
// The package has no knowledge of files, models, sampling or chat templates.
package tokenizer
