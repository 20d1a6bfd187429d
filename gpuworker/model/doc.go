// Package model is the life cycle of the models of one device: it loads a named file, verifies it,
// keeps it in service and unloads it.
//
// A Manager owns the device's models. Load passes these files in this order: manager.go (single
// flight: many callers share one load), load.go, catalog.go (open the file), package arch (parse
// it), facts.go (tokenizer, chat templates, sampling recommendations), fit.go (memory), upload.go
// (copy, hash and bind tensors), verify.go (compare digests) and again load.go (first step, step
// loop). Acquire gives the loaded Instance to a request; idle.go and unload.go take it out of
// service.
//
// The engine computes the digest of every tensor from the resident bytes. The digest is compared
// with the file's at load and periodically afterwards, because a flipped bit in device memory would
// otherwise change answers without an error.
//
// The package handles files, devices and step loops. It has no knowledge of calls, text or
// messages.
package model
