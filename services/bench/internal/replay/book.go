package replay

import "github.com/millrace/millrace/gpuworker/kvcache"

// kvBlock is the number of tokens of a worker's KV block. Answers begin with ids from firstAnswer
// on, which no prompt has.
const (
	kvBlock     = 16
	firstAnswer = 1 << 24
)

// book models the prefix cache of one worker with the worker's own code. Like a worker, it counts
// a prefix as cached from the moment that a call which computes it is sent. It reserves all blocks
// of a call at once and publishes the answer when the call ends.
type book struct {
	cache  *kvcache.Cache
	cached map[uint64]bool // names of the prefixes that it holds
}

func newBook(tokens int) *book {
	return &book{cache: kvcache.New(kvcache.Config{Blocks: tokens / kvBlock, BlockSize: kvBlock}), cached: map[uint64]bool{}}
}

// longest returns the number of leading names that are cached.
func (b *book) longest(names []uint64) int {
	n := 0
	for n < len(names) && b.cached[names[n]] {
		n++
	}
	return n
}

// entry is a call in a book.
type entry struct {
	table *kvcache.Table
	ids   []int32 // the prompt, and an answer that is unique to the call
	found int     // tokens from the cache
}

// begin reserves the blocks of a call, as far as there are any, and publishes its prompt. j.ids
// must be set.
func (b *book) begin(j *job) *entry {
	e := &entry{ids: make([]int32, 0, len(j.ids)+j.output)}
	for _, id := range j.ids {
		e.ids = append(e.ids, int32(id))
	}
	e.table = b.cache.Match(kvcache.Root{}, e.ids)
	e.found = e.table.Shared * kvBlock
	keys := make([]kvcache.Key, len(j.names))
	for i, name := range j.names {
		keys[i] = kvcache.Key{Key: name, Tokens: min((i+1)*j.block, len(j.ids))}
	}
	b.cache.Name(e.table, keys)
	prompt := len(e.ids)
	e.ids = append(e.ids, firstAnswer+int32(j.index)) // makes the rest unique
	e.ids = append(e.ids, make([]int32, j.output-1)...)
	if b.cache.Grow(e.table, len(e.ids)) {
		b.publish(e, prompt)
	}
	return e
}

// end publishes the answer and releases the blocks.
func (b *book) end(e *entry) {
	b.publish(e, len(e.ids))
	_ = b.cache.Release(e.table) // released once
	b.update()
}

func (b *book) publish(e *entry, n int) {
	n = min(n, len(e.table.Blocks)*kvBlock)
	_ = b.cache.Publish(e.table, kvcache.Root{}, e.ids, n) // ids and blocks belong to the call
	b.update()
}

// update applies the changes of the cache to the set of names.
func (b *book) update() {
	added, removed, reset := b.cache.Changes()
	if reset {
		clear(b.cached)
		added, removed = b.cache.All(), nil
	}
	for _, name := range removed {
		delete(b.cached, name)
	}
	for _, name := range added {
		b.cached[name] = true
	}
}
