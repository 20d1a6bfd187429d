package batch

import (
	"slices"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/kvcache"
)

// The prefix cache, as a sequence meets it: it waits for who computes its prefix (awaits), begins with what is there (source), and
// leaves what it computed (remember). A request that bypasses the cache does none of it.

func (s *sequence) root() kvcache.Root { return kvcache.Root{Salt: s.request.Salt} }

// caches says whether a sequence may begin with cached blocks.
func (s *sequence) caches() bool { return !s.request.Bypass && s.spared() > 0 }

// awaits says whether somebody is computing what s would begin with: s is passed over until that is there, or until who computes
// it has gone.
func (l *Loop) awaits(s *sequence) bool {
	if f := s.family; f != nil && f.leader != nil {
		return true
	}
	if !s.caches() || l.lent(s) {
		return false
	}
	ids := s.ids()[:s.spared()+1]
	n := l.cache.Await(&s.look, s.root(), ids)
	return n > 0 && l.urgent(s, ids[:n])
}

// urgent says whether one at least as urgent as s computes a prefix that somebody computes. One of lower priority may be kept from it
// for any time, by those between the two: s does not wait for that, and computes the prefix itself.
func (l *Loop) urgent(s *sequence, prefix []int32) bool {
	lower := func(o *sequence) bool { return o.request.Priority < s.request.Priority }
	if n := len(l.running); n == 0 || !lower(l.running[n-1]) {
		return true
	}
	return slices.ContainsFunc(l.running, func(o *sequence) bool {
		return !lower(o) && o.caching(s.root()) && len(o.ids()) >= len(prefix) && slices.Equal(o.ids()[:len(prefix)], prefix)
	})
}

// caching says whether a sequence leaves what it computes in the cache behind a root.
func (s *sequence) caching(r kvcache.Root) bool { return !s.request.Bypass && s.root() == r }

// source gives a table with what is there of a sequence's first positions, and how many those are. A copy that the table needs
// is to be added to the moves. False: too few blocks are free, and nothing has changed.
func (l *Loop) source(s *sequence) (t *kvcache.Table, have int, move *engine.PreOp, ok bool) {
	size := l.cfg.Runner.BlockSize
	switch {
	case l.lent(s):
		have = min(s.promptLength, s.spared())
		t = l.cache.Fork(s.family.prompt)
		src, dst, copied, ok := l.cache.Own(t, have)
		if !ok {
			l.release(t)
			return nil, 0, nil, false
		}
		if copied && have%size > 0 {
			move = &engine.PreOp{Kind: engine.BlockCopy, Src: src, Dst: dst}
		}
	case s.caches():
		t = l.cache.Match(s.root(), s.ids()[:s.spared()+1])
		have = t.Shared * size
	default:
		t = &kvcache.Table{}
	}
	return t, have, move, true
}

// remember publishes the blocks of s that are full of computed positions.
func (l *Loop) remember(s *sequence) {
	if s.request.Bypass {
		return
	}
	if err := l.cache.Publish(s.table, s.root(), s.ids(), s.computed); err != nil {
		l.logger.Error("publish blocks of a sequence", "error", err)
	}
}

// release gives back what a table holds.
func (l *Loop) release(t *kvcache.Table) {
	if err := l.cache.Release(t); err != nil {
		l.logger.Error("release the blocks of a sequence", "error", err)
	}
}
