package kvcache

// chains are lists of nodes whose hashes end alike, through node.next: a table that is as large from the start as the blocks are many,
// so that finding a node takes one look at it, and adding one moves no other. A hash is as good as random to who chooses the ids.
type chains struct {
	heads []int32 // by the end of a hash: the first of its nodes, or none
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

// of is where the chain of a hash begins.
func (c chains) of(hash uint64) *int32 { return &c.heads[hash&uint64(len(c.heads)-1)] }

// chain makes n the first of its chain.
func (t *tree) chain(n int32) {
	head := t.chains.of(t.nodes[n].hash)
	t.nodes[n].next = *head
	*head = n
}

// unchain takes n out of its chain.
func (t *tree) unchain(n int32) {
	at := t.chains.of(t.nodes[n].hash)
	for *at != n {
		at = &t.nodes[*at].next
	}
	*at = t.nodes[n].next
}
