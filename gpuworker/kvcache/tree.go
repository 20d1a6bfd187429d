package kvcache

import (
	"hash/maphash"
	"math/bits"
	"slices"
)

// Decoded marks a token id whose keys and values the decode kernels computed. It is not needed if
// both kernel classes of an engine give the same bits. A block is shared only among sequences with
// equal ids, marks included.
const Decoded int32 = 1 << 30

// Root is the start of a prefix. Prefixes of different salts never match.
type Root struct{ Salt string }

// node is one block of tokens after those of its parents. It has a device block, an entry in the
// host tier, a claim (a sequence will compute it), or a node below it. If a node has a block, all
// nodes above it have one.
type node struct {
	hash     uint64       // of the chain including this node
	salt     string       // only in a node without a parent
	parent   int32        // node, or none
	next     int32        // next node of its hash chain, or next unused node
	block    int32        // the node's own block, or none
	twin     int32        // first of the other blocks with the same content; twin != none: refs[block] >= 1
	claims   int32        // tables that will compute it
	state    int32        // the saved state after its last token; 0: none. A node with a state has a block or an entry
	window   int32        // its block of the window group, or none. A node with one has a block or an entry
	stamp    uint64       // distinguishes reuses of the array element; 0: unused
	hidden   bool         // not in its hash chain: it cannot be found, nor what continues it
	lost     bool         // it or a node above it is hidden; len(keys) == 0
	hosted   [kinds]int32 // its entries in the host tier, or none
	children int32        // nodes below it whose parent it is
	place    place        // where its keys count
	idle     link
	keys     []uint64
}

// tree finds nodes by their tokens and those before them. Nodes are indices into one array, so that
// reusing one allocates nothing.
type tree struct {
	blockSize int
	nodes     []node
	ids       []int32 // blockSize ids for each node
	unused    int32   // first node of the free list
	chains    chains
	stamps    uint64 // last stamp
	hasher    hasher
	// hash is hasher.next; tests make it collide.
	hash func(parent uint64, ids []int32) uint64
}

func newTree(blocks, hosted, blockSize int) tree {
	t := tree{
		blockSize: blockSize, nodes: make([]node, 0, blocks), ids: make([]int32, 0, blocks*blockSize),
		unused: none, chains: newChains(blocks + hosted), hasher: newHasher(),
	}
	t.hash = t.hasher.next
	return t
}

// walk is a position in the tree on the path of one sequence.
type walk struct {
	salt   string
	hash   uint64 // of the chain so far
	parent int32  // node at the position, or none at the root
}

// root returns the position of a root.
func (t *tree) root(r Root) walk {
	return walk{salt: r.Salt, hash: t.hasher.root(r.Salt), parent: none}
}

// walkFrom returns the position at node n.
func (t *tree) walkFrom(n int32) walk { return walk{hash: t.nodes[n].hash, parent: n} }

// step returns the child of w for one block of ids, or none with the hash that it would have.
func (t *tree) step(w walk, ids []int32) (n int32, hash uint64) {
	hash = t.hash(w.hash, ids)
	for n = *t.chains.head(hash); n != none; n = t.nodes[n].next {
		if t.nodes[n].hash == hash && t.same(n, w, ids) {
			return n, hash
		}
	}
	return none, hash
}

// same compares everything that identifies a node, because hashes may collide.
func (t *tree) same(n int32, w walk, ids []int32) bool {
	x := &t.nodes[n]
	return x.parent == w.parent && (w.parent != none || x.salt == w.salt) && slices.Equal(t.idsOf(n), ids)
}

// add inserts the child of w for ids. It has neither block nor claim yet.
func (t *tree) add(w walk, hash uint64, ids []int32) int32 {
	n := t.unused
	if n == none {
		n = int32(len(t.nodes))
		t.nodes = append(t.nodes, node{})
		t.ids = append(t.ids, ids...)
	} else {
		t.unused = t.nodes[n].next
		copy(t.idsOf(n), ids)
	}
	x := &t.nodes[n]
	t.stamps++
	*x = node{hash: hash, parent: w.parent, block: none, twin: none, window: none, stamp: t.stamps, keys: x.keys[:0]}
	x.hosted = [kinds]int32{none, none, none}
	if w.parent == none {
		x.salt = w.salt
	} else {
		x.lost = t.nodes[w.parent].lost
		t.nodes[w.parent].children++
	}
	t.chain(n)
	return n
}

// prune removes n if it has neither block, entry, claim nor child, and then the nodes above it for
// which the same holds.
func (t *tree) prune(n int32) {
	for n != none {
		x := &t.nodes[n]
		if x.stamp == 0 || x.block != none || x.hosted[Block] != none || x.claims > 0 || x.children > 0 {
			return
		}
		if !x.hidden {
			t.unchain(n)
		}
		x.salt, x.stamp, x.next, t.unused = "", 0, t.unused, n
		if n = x.parent; n != none {
			t.nodes[n].children--
		}
	}
}

// hide makes n and all nodes below it unfindable and returns them, or nil if they are hidden
// already. Sequences that hold one of them continue, and what they publish below is hidden too.
func (t *tree) hide(n int32) []int32 {
	if t.nodes[n].lost {
		return nil
	}
	t.unchain(n)
	t.nodes[n].hidden, t.nodes[n].next = true, none
	all := t.below(n)
	for _, m := range all {
		t.stamps++ // a Cursor at this node starts again
		t.nodes[m].lost, t.nodes[m].stamp = true, t.stamps
	}
	return all
}

// below returns n and all nodes below it in one pass over all nodes.
func (t *tree) below(n int32) []int32 {
	var all, path []int32
	type state struct{ known, below bool }
	states := make([]state, len(t.nodes))
	states[n] = state{true, true}
	for i := range t.nodes {
		if t.nodes[i].stamp == 0 {
			continue
		}
		m := int32(i)
		for path = path[:0]; m != none && !states[m].known; m = t.nodes[m].parent {
			path = append(path, m)
		}
		found := state{true, m != none && states[m].below}
		for _, m := range path {
			states[m] = found
		}
		if states[i].below {
			all = append(all, int32(i))
		}
	}
	return all
}

func (t *tree) idsOf(n int32) []int32 {
	return t.ids[int(n)*t.blockSize : (int(n)+1)*t.blockSize]
}

// chains are hash chains of nodes, linked by node.next. The table has its final size from the
// start, one entry for each block of both tiers, so that finding a node takes one lookup and nothing
// is ever rehashed. The hash is keyed, so callers cannot choose ids that collide.
type chains struct {
	heads []int32 // by low bits of the hash: first node, or none
}

func newChains(blocks int) chains {
	size := 1
	for size < blocks {
		size *= 2
	}
	heads := make([]int32, size)
	for i := range heads {
		heads[i] = none
	}
	return chains{heads}
}

// head is the entry of a hash.
func (c chains) head(hash uint64) *int32 { return &c.heads[hash&uint64(len(c.heads)-1)] }

// chain inserts n at the head of its chain.
func (t *tree) chain(n int32) {
	head := t.chains.head(t.nodes[n].hash)
	t.nodes[n].next = *head
	*head = n
}

// unchain removes n from its chain.
func (t *tree) unchain(n int32) {
	next := t.chains.head(t.nodes[n].hash)
	for *next != n {
		next = &t.nodes[*next].next
	}
	*next = t.nodes[n].next
}

// hasher computes chain hashes: the hash of a block depends on the hash before it and on its ids.
// Its secrets differ from process to process, so that callers cannot construct collisions. A
// collision costs time only, because nodes are compared.
type hasher struct {
	seed maphash.Seed
	a, b uint64
}

func newHasher() hasher {
	seed := maphash.MakeSeed()
	return hasher{seed: seed, a: maphash.String(seed, "a"), b: maphash.String(seed, "b") | 1}
}

// root is the hash at the root of a salt.
func (h hasher) root(salt string) uint64 { return maphash.String(h.seed, salt) }

// next is the hash of a block after a chain with hash parent: one folded multiplication for each
// pair of ids.
func (h hasher) next(parent uint64, ids []int32) uint64 {
	x := parent ^ h.a
	for i := 0; i < len(ids); i += 2 {
		pair := uint64(uint32(ids[i]))
		if i+1 < len(ids) {
			pair |= uint64(uint32(ids[i+1])) << 32
		}
		high, low := bits.Mul64(x^pair, h.b)
		x = bits.RotateLeft64(high^low, 23) + h.a
	}
	return x
}
