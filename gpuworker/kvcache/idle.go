package kvcache

// link is a position in a doubly linked list of blocks or nodes; none ends the list.
type link struct{ older, newer int32 }

// idleList is the nodes whose blocks no table holds, least recently used first.
//
// A node precedes its parent: a table that holds a node holds everything above it too, and releases
// its blocks last to first. So when a node becomes idle, everything below it is idle already. No
// node below the oldest one therefore has a block, and evicting it is both LRU and leaf-first, in
// constant time.
type idleList struct {
	oldest, newest int32
	count          int
}

func newIdleList() idleList { return idleList{oldest: none, newest: none} }

// add appends n as the newest.
func (l *idleList) add(t *tree, n int32) {
	t.nodes[n].idle = link{older: l.newest, newer: none}
	if l.newest == none {
		l.oldest = n
	} else {
		t.nodes[l.newest].idle.newer = n
	}
	l.newest = n
	l.count++
}

// remove takes n, which is in the list, out of it.
func (l *idleList) remove(t *tree, n int32) {
	neighbours := t.nodes[n].idle
	if neighbours.older == none {
		l.oldest = neighbours.newer
	} else {
		t.nodes[neighbours.older].idle.newer = neighbours.newer
	}
	if neighbours.newer == none {
		l.newest = neighbours.older
	} else {
		t.nodes[neighbours.newer].idle.older = neighbours.older
	}
	l.count--
}
