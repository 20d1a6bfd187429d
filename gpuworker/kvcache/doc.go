// Package kvcache hands out the blocks of a runner's KV cache.
//
// The step loop owns a Pool and allocates blocks to sequences as they grow; only Free and Total may be called from
// other goroutines. It counts blocks and refuses to know what is in them.
package kvcache
