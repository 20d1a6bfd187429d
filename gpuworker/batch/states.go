package batch

import (
	"cmp"
	"slices"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/kvcache"
)

// Layers may carry a state from position to position (Config.States). Each slot has one, which its
// segments read and write. So that others can start in the middle of a sequence, a part is cut into
// segments at some positions: the segment before such a position writes a saved state, and the next
// one reads it and writes the slot's own again. That costs no step and no copy, and cuts change no
// bit. A sequence that starts where a saved state stands reads it with its first segment.

// savedState is a saved state after the first tokens of a sequence.
type savedState struct {
	tokens   int
	id       int32
	interval bool // it is there only because the one before it is an interval away
}

const (
	// usualStateInterval is how far apart saved states of a long text are, in tokens.
	usualStateInterval = 512
	// minStateTokens is how many tokens a saved state must save its readers.
	minStateTokens = 64
)

// planStates allocates the states that the next part of s, of n tokens, saves. They stay with s
// until a part is submitted or planned again.
func (l *Loop) planStates(s *sequence, n int) {
	if !l.cfg.States {
		return
	}
	l.dropSaved(s.plannedStates)
	s.plannedStates = s.plannedStates[:0]
	for _, saved := range l.savePositions(s, s.submitted+n) {
		if slices.ContainsFunc(s.plannedStates, func(p savedState) bool { return p.tokens == saved.tokens }) {
			continue
		}
		var ok bool
		if saved.id, ok = l.cache.AllocState(); !ok {
			break
		}
		s.plannedStates = append(s.plannedStates, saved)
	}
	if at := l.tailPosition(s, n); at > 0 {
		s.plannedStates = append(s.plannedStates, savedState{tokens: at, id: s.tail.id})
		l.cache.HoldState(s.tail.id)
	}
	slices.SortFunc(s.plannedStates, func(a, b savedState) int { return cmp.Compare(a.tokens, b.tokens) })
}

// savePositions returns the states, without ids, that the next part of s saves up to end, the most
// useful first: where the other members of its group start, where its prompt was found to leave
// another one, the last block of it that is useful to a prompt that begins with it, and one an
// interval. A position too close to one before it, also of an earlier or a later part, is left out.
func (l *Loop) savePositions(s *sequence, end int) (out []savedState) {
	size, interval := l.cfg.Runner.BlockSize, l.cfg.StateInterval
	if at := s.promptLength - 1; s.leads() && at > s.submitted && at <= end {
		out = append(out, savedState{tokens: at})
	}
	if s.request.Bypass {
		return out
	}
	useful := (s.promptLength - 1) / size * size
	if shared := s.shared(); shared < s.promptLength {
		useful = shared / size * size
	}
	chosen := make([]int, 1, 16)
	chosen[0] = s.lastState
	add := func(at int, interval bool) {
		near := func(other int) bool { return max(at-other, other-at) < minStateTokens }
		if at <= s.submitted || s.request.Shared > 0 && at > s.request.Shared || slices.ContainsFunc(chosen, near) {
			return
		}
		chosen = append(chosen, at)
		if at <= end && !l.cache.HasState(s.table, s.root(), s.ids(), at) {
			out = append(out, savedState{tokens: at, interval: interval})
		}
	}
	add(s.left, false)
	add(useful, false)
	for i := end / interval; i*interval > s.submitted; i-- {
		add(i*interval/size*size, true)
	}
	return out
}

// tailPosition returns where the next part of s, of n tokens, writes the state of its tail; 0:
// nowhere.
//
// The next turn of a chat begins with the prompt, the answer and its stop token, and so it starts
// after the last whole block of these. Which block that is follows when the answer ends, and then
// its state is overwritten. So an answer has one saved state, its tail, which each of its block
// ends overwrites, and which becomes findable when the sequence leaves its slot. It costs no copy.
//
// An answer has no tail if prompts compute other bits than it (Config.OneClass), because no prompt
// then begins with its blocks, nor if its end is within minStateTokens of a saved state. Tails hold
// half of the saved states at most, so that prompts can save theirs.
func (l *Loop) tailPosition(s *sequence, n int) int {
	size, end := l.cfg.Runner.BlockSize, s.submitted+n
	at := end / size * size
	if at <= max(s.submitted, s.promptLength) || at-s.lastState < minStateTokens || s.request.Shared > 0 && at > s.request.Shared ||
		s.request.Bypass || !l.cfg.OneClass && s.request.Class != engine.Decode ||
		slices.ContainsFunc(s.plannedStates, func(p savedState) bool { return p.tokens == at }) {
		return 0
	}
	if s.tail.id == 0 {
		if 2*(l.tails+1) > l.cfg.Runner.SavedStates {
			return 0
		}
		id, ok := l.cache.AllocState()
		if !ok {
			return 0
		}
		s.tail.id = id
		l.tails++
	}
	return at
}

// publishTail makes the tail of s findable, which leaves its slot. No step in flight writes it.
func (l *Loop) publishTail(s *sequence) {
	if s.tail.tokens > s.lastState {
		l.cache.PublishState(s.table, s.tail.tokens, s.tail.id, false)
	}
}

// leads reports whether other members of its group wait for the prompt that s computes.
func (s *sequence) leads() bool { return s.group != nil && s.group.leader == s && s.group.pending > 0 }

// addSegments appends the segments of a run of s, cut where its states are saved.
func (p *plan) addSegments(s *sequence, class engine.KernelClass, run []int32, part *part) {
	at, from, end := s.submitted, s.state, s.submitted+len(run)
	add := func(to int, state int32) {
		p.step.Segments = append(p.step.Segments, engine.Segment{
			Slot: s.slot, SlotGeneration: s.generation, Class: class,
			FirstPosition: int32(at), Tokens: run[at-s.submitted : to-s.submitted], Blocks: s.table.Blocks, WindowBlocks: s.table.Window,
			StateFrom: from, StateTo: state,
		})
		at, from = to, state
	}
	for _, saved := range s.plannedStates {
		if saved.tokens > at && saved.tokens <= end {
			add(saved.tokens, saved.id)
			part.saved = append(part.saved, saved)
		}
	}
	if at < end {
		add(end, 0)
	}
	part.state = from
}

// statesSubmitted records the states that an accepted part of s writes.
func (l *Loop) statesSubmitted(s *sequence, p *part) {
	if p.state != 0 {
		l.cache.HoldState(p.state)
	}
	l.dropState(s.state)
	s.state = p.state
	for _, saved := range p.saved {
		s.plannedStates = slices.DeleteFunc(s.plannedStates, func(other savedState) bool { return other == saved })
		if saved.id == s.tail.id {
			s.tail.tokens = saved.tokens
			l.dropState(saved.id)
			continue
		}
		if saved.tokens%l.cfg.Runner.BlockSize == 0 { // else only its group starts there
			s.lastState = saved.tokens
		}
		if s.leads() && saved.tokens == s.promptLength-1 {
			l.cache.HoldState(saved.id)
			s.promptState = saved
		}
		s.savedStates = append(s.savedStates, saved)
	}
	if l.cfg.States && s.leads() && s.submitted >= s.promptLength && !s.sharesState() {
		s.group.alone, s.group.leader = true, nil
	}
}

// publishStates makes the computed states of s findable.
func (l *Loop) publishStates(s *sequence) {
	for len(s.savedStates) > 0 && s.savedStates[0].tokens <= s.computed {
		saved := s.savedStates[0]
		l.cache.PublishState(s.table, saved.tokens, saved.id, saved.interval)
		l.dropState(saved.id)
		s.savedStates = slices.Delete(s.savedStates, 0, 1)
	}
}

// matchState returns a table with the longest cached prefix of s that ends at a state.
func (l *Loop) matchState(s *sequence, ids []int32) *kvcache.Table {
	t, state, found := l.cache.MatchState(s.root(), ids)
	s.state, s.left, s.lastState = state, 0, t.Shared*l.cfg.Runner.BlockSize
	if found > s.lastState {
		s.left = found
	}
	return t
}

// giveUpStates drops all states that s holds.
func (l *Loop) giveUpStates(s *sequence) {
	l.dropState(s.state)
	l.dropState(s.promptState.id)
	if s.tail.id != 0 {
		l.dropState(s.tail.id)
		l.tails--
	}
	l.dropSaved(s.plannedStates)
	l.dropSaved(s.savedStates)
	s.state, s.promptState, s.tail, s.left, s.lastState = 0, savedState{}, savedState{}, 0, 0
	s.plannedStates, s.savedStates = s.plannedStates[:0], s.savedStates[:0]
}

func (l *Loop) dropSaved(states []savedState) {
	for _, saved := range states {
		l.dropState(saved.id)
	}
}

// dropState drops a saved state; 0 is the slot's own.
func (l *Loop) dropState(id int32) {
	if id == 0 {
		return
	}
	if err := l.cache.DropState(id); err != nil {
		l.logger.Error("give back a saved state", "error", err)
	}
}
