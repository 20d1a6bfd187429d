// Package kvcache keeps the books of a runner's KV blocks: who holds which, and which prefixes they contain.
//
// A sequence begins with Match, which gives it a Table of the blocks that hold the longest known prefix of its tokens, makes it
// longer with Grow, tells with Publish which blocks are full, and ends with Release. Blocks are reference-counted, so that
// sequences share prefixes and continuations of one prompt share it whole. A full block that is published stays findable after
// its last holder has gone, until Grow needs it for others: leaves before what they continue, least recently used first.
// The cache counts blocks and compares token ids; it refuses to know what the blocks hold, to copy anything, and to know time.
//
// One goroutine owns a Cache and calls all of it, and all its Tables. Only BlockSize, Total, BlocksFor, Free, Cached, FreeHost
// and Stats may be called from others.
//
// Whoever owns the cache submits steps to a device that works in the order of submission. A block that is given back may
// therefore be handed out at once, although steps in flight still read it: whatever writes to it is submitted later.
package kvcache
