package kvcache

// link is a place in a doubly linked list of blocks or nodes; none ends it at both sides.
type link struct{ older, newer int32 }

// idleList is the nodes whose blocks no table holds, in the order in which they came to be so.
//
// A node precedes its parent: whoever stands on a node holds all that lies above it too, and gives its blocks back from the last to
// the first; so when a node becomes idle, whatever continues it is idle already. The oldest is therefore always a leaf, and
// evicting the oldest is least recently used first and leaf first at once, in constant time.
type idleList struct {
	oldest, newest int32
	count          int
}

func newIdleList() idleList { return idleList{oldest: none, newest: none} }

// add makes n the newest.
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

// remove takes n out, which is in the list.
func (l *idleList) remove(t *tree, n int32) {
	place := t.nodes[n].idle
	if place.older == none {
		l.oldest = place.newer
	} else {
		t.nodes[place.older].idle.newer = place.newer
	}
	if place.newer == none {
		l.newest = place.older
	} else {
		t.nodes[place.newer].idle.older = place.older
	}
	l.count--
}
