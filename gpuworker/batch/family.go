package batch

import (
	"slices"

	"github.com/millrace/millrace/gpuworker/kvcache"
)

// family is the continuations of one request. One of them, the leader, computes the prompt while the others wait for it. Then the
// family keeps the prompt's blocks, and each that comes later begins with them: whole blocks are shared, the last one, which
// each fills with its own tokens, is copied on the device. Whether the request bypasses the prefix cache makes no difference.
//
// The leader goes on writing into the last block that the family keeps, behind the prompt: nobody reads it there, because who
// begins with the family's blocks takes a copy and writes over all behind the prompt.
type family struct {
	coming int            // members that never had a place and have not ended
	leader *sequence      // computes the prompt; nil: nobody does
	prompt *kvcache.Table // the computed prompt, kept for those to come; nil: it is not there
	cached int            // tokens of the prompt that its leader took from the prefix cache
	began  bool           // a member has had a place
}

// lent says whether s may begin with its family's prompt.
func (l *Loop) lent(s *sequence) bool {
	return s.family != nil && s.family.prompt != nil && s.spared() >= min(s.promptLength, len(s.tokens)-1) && l.movable(1)
}

// lend keeps the prompt that a leader has computed for the members to come.
func (l *Loop) lend(s *sequence) {
	f := s.family
	if f == nil || f.leader != s || s.computed < s.promptLength {
		return
	}
	f.leader = nil
	if f.coming > 0 {
		f.prompt = l.cache.Fork(s.table)
		l.kept = append(l.kept, f)
	}
}

// came counts a member that got its first place, or ended without one.
func (l *Loop) came(f *family) {
	f.coming--
	if f.coming == 0 && f.prompt != nil {
		l.forget(f)
	}
}

// forgetPrompt gives up the oldest prompt that a family keeps, except one's: its members compute it again, or find it in the
// prefix cache. It says whether there was one.
func (l *Loop) forgetPrompt(except *family) bool {
	for _, f := range l.kept {
		if f != except {
			l.forget(f)
			return true
		}
	}
	return false
}

func (l *Loop) forget(f *family) {
	l.release(f.prompt)
	f.prompt = nil
	l.kept = slices.DeleteFunc(l.kept, func(k *family) bool { return k == f })
}
