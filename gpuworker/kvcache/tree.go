package kvcache

import "slices"

// Decoded marks a token id whose keys and values the decode kernels computed. An engine whose two kernel classes give the same
// bits has no need of it. A block is shared only among sequences whose ids are equal, marks included.
const Decoded int32 = 1 << 30

// Root is where a prefix begins: prefixes of different salts never meet.
type Root struct{ Salt string }

// node is one block's worth of tokens behind those of its parents. It has a block of the device, or somebody is going to compute
// it (claims >= 1), or both. Every node above one that has a block has a block.
type node struct {
	hash   uint64 // of the chain up to and with it
	salt   string // of a node without a parent; a parent says it for the others
	parent int32  // node, or none
	next   int32  // another node of the same chain, or the next unused one
	block  int32  // whose content others may share, or none
	twin   int32  // the first of the blocks with the same content that tables hold beside it. twin != none: refs[block] >= 1
	claims int32  // tables that are going to compute it
	stamp  uint64 // tells it from others that were in its place; 0: it is unused
	hidden bool   // it is in no chain: nobody finds it, nor what continues it
	lost   bool   // it or a node above it is hidden. len(keys) == 0
	idle   link
	keys   []uint64 // each once
}

// tree finds nodes by what precedes them and their ids. Nodes are numbers into one array, so that nothing is allocated for one
// that takes the place of another.
type tree struct {
	blockSize int
	nodes     []node
	ids       []int32 // blockSize ids a node
	unused    int32   // the first of the nodes that are in no chain
	chains    chains
	stamps    uint64 // given so far
	hasher    hasher
	// hash is hasher.next; tests make it collide.
	hash func(parent uint64, ids []int32) uint64
}

func newTree(blocks, blockSize int) tree {
	t := tree{
		blockSize: blockSize, nodes: make([]node, 0, blocks), ids: make([]int32, 0, blocks*blockSize),
		unused: none, chains: newChains(blocks), hasher: newHasher(),
	}
	t.hash = t.hasher.next
	return t
}

// walk is a way down the tree along the ids of one sequence.
type walk struct {
	salt   string
	hash   uint64 // of the chain so far
	parent int32  // node it stands on, or none at the root
}

// begin stands at the root.
func (t *tree) begin(r Root) walk {
	return walk{salt: r.Salt, hash: t.hasher.root(r.Salt), parent: none}
}

// at stands on node n.
func (t *tree) at(n int32) walk { return walk{hash: t.nodes[n].hash, parent: n} }

// step goes on to the node of ids, one block of them, or says which hash it would have if there is none.
func (t *tree) step(w walk, ids []int32) (n int32, hash uint64) {
	hash = t.hash(w.hash, ids)
	for n = *t.chains.of(hash); n != none; n = t.nodes[n].next {
		if t.nodes[n].hash == hash && t.same(n, w, ids) {
			return n, hash
		}
	}
	return none, hash
}

// same compares all that makes a node: hashes alone prove nothing.
func (t *tree) same(n int32, w walk, ids []int32) bool {
	x := &t.nodes[n]
	return x.parent == w.parent && (w.parent != none || x.salt == w.salt) && slices.Equal(t.idsOf(n), ids)
}

// add makes the node of ids behind w, which has neither a block nor a claim yet.
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
	*x = node{hash: hash, parent: w.parent, block: none, twin: none, stamp: t.stamps, keys: x.keys[:0]}
	if w.parent == none {
		x.salt = w.salt
	} else {
		x.lost = t.nodes[w.parent].lost
	}
	t.chain(n)
	return n
}

// prune takes n out if it has neither a block nor a claim. Nothing stands below such a node.
func (t *tree) prune(n int32) {
	x := &t.nodes[n]
	if x.block != none || x.claims > 0 {
		return
	}
	if !x.hidden {
		t.unchain(n)
	}
	x.salt, x.stamp, x.next, t.unused = "", 0, t.unused, n
}

// hide removes n and all nodes below it from lookup and returns them; it returns nil if they are hidden already. Sequences that
// hold one of them continue, and the nodes that they publish are hidden too.
func (t *tree) hide(n int32) []int32 {
	if t.nodes[n].lost {
		return nil
	}
	t.unchain(n)
	t.nodes[n].hidden, t.nodes[n].next = true, none
	all := t.below(n)
	for _, m := range all {
		t.stamps++ // a Look that stands on it begins again
		t.nodes[m].lost, t.nodes[m].stamp = true, t.stamps
	}
	return all
}

// below returns n and all nodes that continue it. It looks at every node once.
func (t *tree) below(n int32) []int32 {
	var all, way []int32
	type state struct{ known, below bool }
	states := make([]state, len(t.nodes))
	states[n] = state{true, true}
	for i := range t.nodes {
		if t.nodes[i].stamp == 0 {
			continue
		}
		at := int32(i)
		for way = way[:0]; at != none && !states[at].known; at = t.nodes[at].parent {
			way = append(way, at)
		}
		found := state{true, at != none && states[at].below}
		for _, m := range way {
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
