// Package kvcache accounts for the KV blocks of a runner: which sequence holds which block, and
// which prefixes the blocks contain. The paged layout follows PagedAttention (vLLM, Kwon et al.,
// SOSP 2023); the prefix cache is a tree of full blocks, as in RadixAttention (SGLang, Zheng et
// al., 2023).
//
// A sequence starts with Match, which returns a Table of the blocks that hold its longest cached
// prefix. Grow extends the table, Publish makes full blocks available as prefix hits, and Release
// gives all blocks back. Blocks are reference-counted, so sequences share prefixes, and
// continuations of one prompt share it whole (Fork, copy on write by Own). A published block stays
// findable after its last holder released it, until Grow needs it: eviction is least recently used
// first, leaves before their parents.
//
// Layers may carry a state from position to position, which blocks do not hold. A sequence then
// starts where a saved state stands (MatchState). Saved states are findable at the nodes of the
// tree (PublishState), have holders while a sequence needs them, and are evicted least recently
// used first, or with the block of their node.
//
// Layers with a window may have blocks of their own, the window group. A table has a second list of
// blocks for them (GrowWindow), and drops those that left the window (Slide). They stay findable at
// the nodes of the tree until they are needed, and a sequence starts where the ones are there that
// its first position sees (MatchWindow).
//
// Evicted blocks and states may go to host memory, the host tier (Config.Tier), whose entries are at
// the nodes of the same tree. The cache plans the copies. A sequence starts with what both tiers
// have together (Longer, Recall).
//
// The owner of the cache submits steps to a device that executes them in order. A released block
// may therefore be reused at once although steps in flight still read it: the step that overwrites
// it is submitted later.
//
// One goroutine owns a Cache and all its Tables. Only BlockSize, Total, BlocksFor, Free, Cached,
// FreeHost, TierUsed and Stats may be called from others. The cache counts blocks and compares
// token ids. It never reads or copies their content and has no clock.
package kvcache
