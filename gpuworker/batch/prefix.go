package batch

import (
	"slices"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/kvcache"
)

// root is where the cached prefixes of its salt begin.
func (s *sequence) root() kvcache.Root { return kvcache.Root{Salt: s.request.Salt} }

// caches reports whether a sequence may start with cached blocks. A request with Bypass neither
// waits for a prefix (awaitsPrefix), nor starts with one (startingTable), nor publishes its blocks
// (publish).
func (s *sequence) caches() bool { return !s.request.Bypass && s.reusable() > 0 }

// awaitsPrefix reports whether another sequence computes blocks that s could start with. admit then
// skips s: waiting is cheaper than computing the same prefix twice.
func (l *Loop) awaitsPrefix(s *sequence) bool {
	if g := s.group; g != nil && g.leader != nil {
		return true
	}
	// The blocks of another sequence are of no use without a state after them.
	if l.cfg.States || !s.caches() || l.canSharePrompt(s) {
		return false
	}
	ids := s.ids()[:s.reusable()+1]
	n := l.cache.Await(&s.cursor, s.root(), ids)
	return n > 0 && l.hasUrgentProducer(s, ids[:n])
}

// hasUrgentProducer reports whether a sequence of at least the priority of s computes the prefix. A
// producer of lower priority may be delayed for any time by sequences between the two, so s does
// not wait for it and computes the prefix itself.
func (l *Loop) hasUrgentProducer(s *sequence, prefix []int32) bool {
	lower := func(o *sequence) bool { return o.request.Priority < s.request.Priority }
	if n := len(l.running); n == 0 || !lower(l.running[n-1]) {
		return true
	}
	return slices.ContainsFunc(l.running, func(o *sequence) bool {
		return !lower(o) && o.publishes(s.root()) && len(o.ids()) >= len(prefix) && slices.Equal(o.ids()[:len(prefix)], prefix)
	})
}

// publishes reports whether a sequence publishes its blocks under root r.
func (s *sequence) publishes(r kvcache.Root) bool { return !s.request.Bypass && s.root() == r }

// startingTable returns a table with the cached first blocks of a sequence and the number of
// positions in them. s.state is the state with which it starts, which s then holds. The caller
// must plan the moves, which are copies. If too few blocks are free, ok is false and nothing has
// changed.
func (l *Loop) startingTable(s *sequence) (t *kvcache.Table, have int, moves []engine.PreOp, ok bool) {
	size := l.cfg.Runner.BlockSize
	s.recalling = false
	switch {
	case l.canSharePrompt(s):
		have = min(s.promptLength, s.reusable())
		if l.cfg.States {
			have = s.group.state.tokens
		}
		t = l.cache.Fork(s.group.prompt)
		src, dst, copied, ok := l.cache.Own(t, have)
		if !ok {
			l.release(t)
			return nil, 0, nil, false
		}
		if copied && have%size > 0 {
			moves = append(moves, engine.PreOp{Kind: engine.BlockCopy, Src: src, Dst: dst})
		}
		copies, ok := l.ownWindow(t, have)
		if !ok {
			l.release(t)
			return nil, 0, nil, false
		}
		moves = append(moves, copies...)
		if s.state = s.group.state.id; s.state != 0 {
			l.cache.HoldState(s.state)
		}
		s.lastState = have
	case s.caches() && l.cfg.States:
		ids := s.ids()[:s.reusable()+1]
		t = l.matchState(s, ids)
		l.recall(s, t, ids)
		have = t.Shared * size
	case s.caches() && l.cfg.Window > 0:
		var found int
		ids := s.ids()[:s.reusable()+1]
		t, found = l.cache.MatchWindow(s.root(), ids)
		if s.left = 0; found > t.Shared*size {
			s.left = found
		}
		l.recall(s, t, ids)
		have = t.Shared * size
	case s.caches():
		ids := s.ids()[:s.reusable()+1]
		t = l.cache.Match(s.root(), ids)
		l.recall(s, t, ids)
		have = t.Shared * size
	default:
		t = &kvcache.Table{}
	}
	return t, have, moves, true
}

// shared is how many of its first positions other sequences may find in the prefix cache.
func (s *sequence) shared() int {
	if s.request.Shared > 0 {
		return min(s.request.Shared, len(s.tokens))
	}
	return len(s.tokens)
}

// publish makes full, computed blocks of s available as prefix hits.
func (l *Loop) publish(s *sequence) {
	defer l.publishStates(s)
	if s.request.Bypass {
		return
	}
	if err := l.cache.Publish(s.table, s.root(), s.ids(), min(s.computed, s.shared())); err != nil {
		l.logger.Error("publish blocks of a sequence", "error", err)
	}
}

// release gives back the blocks of a table.
func (l *Loop) release(t *kvcache.Table) {
	if err := l.cache.Release(t); err != nil {
		l.logger.Error("release the blocks of a sequence", "error", err)
	}
}
