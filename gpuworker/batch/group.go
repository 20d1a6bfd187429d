package batch

import (
	"slices"

	"github.com/millrace/millrace/gpuworker/kvcache"
)

// sequenceGroup is the continuations of one request. One of them, the leader, computes the prompt
// while the others wait. Then the group holds a fork of the prompt's blocks, and each later member
// starts with it. Full blocks are shared. The last block, which each member fills with its own
// tokens, is copied on the device. All of this works without the prefix cache too (Request.Bypass).
//
// The leader keeps writing into the last block that the group holds, after the prompt. That is
// safe: a member that starts takes a copy of the block, reads only the prompt in it and overwrites
// the rest.
type sequenceGroup struct {
	pending int            // members that neither had a slot nor ended
	leader  *sequence      // computes the prompt; nil: none does
	prompt  *kvcache.Table // the computed prompt, held for pending members; nil: none
	state   savedState     // with which later members start, if layers carry one; its id 0: the prompt is one token
	cached  int            // prompt tokens that the leader found in the prefix cache
	started bool           // a member has had a slot
	alone   bool           // no state of the prompt could be saved: each member computes it
}

// canSharePrompt reports whether s may start with the prompt that its group holds.
func (l *Loop) canSharePrompt(s *sequence) bool {
	return s.group != nil && s.group.prompt != nil && s.reusable() >= min(s.promptLength, len(s.tokens)-1) && l.movable(2)
}

// sharePrompt makes the group of s hold the prompt that s, its leader, has computed.
func (l *Loop) sharePrompt(s *sequence) {
	g := s.group
	if g == nil || g.leader != s || s.computed < s.promptLength {
		return
	}
	if s.leads() && (!l.cfg.States || s.sharesState()) {
		g.state, s.promptState = s.promptState, savedState{}
		g.prompt = l.cache.Fork(s.table)
		l.sharedPrompts = append(l.sharedPrompts, g)
	}
	g.leader = nil
	l.dropState(s.promptState.id)
	s.promptState = savedState{}
}

// sharesState reports whether s, a leader whose layers carry a state, has what the others start with.
func (s *sequence) sharesState() bool { return s.promptState.id != 0 || s.promptLength == 1 }

// electLeader makes s the leader of its group if the prompt is neither computed nor being computed.
// If s starts with the state that the others need, its group holds that. If it cannot save one, none
// of the members waits for another.
func (l *Loop) electLeader(s *sequence) {
	g := s.group
	if g == nil || g.alone || g.prompt != nil || g.leader != nil || s.computed >= s.promptLength {
		return
	}
	at := s.promptLength - 1
	if l.cfg.States && at > 0 && !l.holdPromptState(s) && (s.submitted == at || l.cfg.Runner.SavedStates == 0) {
		g.alone = true
		return
	}
	g.leader = s
}

// holdPromptState holds the state with which s starts for the other members of its group. It
// returns false if they need another one.
func (l *Loop) holdPromptState(s *sequence) bool {
	at := s.promptLength - 1
	if s.submitted != at || s.state == 0 {
		return false
	}
	l.cache.HoldState(s.state)
	s.promptState = savedState{tokens: at, id: s.state}
	return true
}

// countMember counts a member that got its first slot or ended without one.
func (l *Loop) countMember(g *sequenceGroup) {
	g.pending--
	if g.pending == 0 && g.prompt != nil {
		l.dropPrompt(g)
	}
}

// dropOldestPrompt drops the prompt that a group, other than except, has held longest. Its members
// will recompute it or find it in the prefix cache. It returns false if there was none.
func (l *Loop) dropOldestPrompt(except *sequenceGroup) bool {
	for _, g := range l.sharedPrompts {
		if g != except {
			l.dropPrompt(g)
			return true
		}
	}
	return false
}

func (l *Loop) dropPrompt(g *sequenceGroup) {
	l.release(g.prompt)
	l.dropState(g.state.id)
	g.prompt, g.state = nil, savedState{}
	l.sharedPrompts = slices.DeleteFunc(l.sharedPrompts, func(k *sequenceGroup) bool { return k == g })
}
