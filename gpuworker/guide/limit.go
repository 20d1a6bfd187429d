package guide

// Limit bounds the tokens of a part of a text, from Open to Close. When so many tokens are in it, the text must go on
// with Close. So a mask depends on the number of tokens and not on the text alone; the state has that number, which
// follows from the ids.
//
// A token that ends the part, or begins it, does not count. A character that the last token left unfinished is finished
// before Close.
type Limit struct {
	// Open begins the part, at the beginning of the text; empty: the text begins inside the part.
	Open string
	// Close ends it. The source must allow it wherever the part is in whole characters.
	Close  string
	Tokens int
}

// phase is where a text is with regard to the part of a limit.
type phase uint8

const (
	beforePart phase = iota
	insidePart
	afterPart
)

// limitState is how far a text has got under a limit. The zero value is the beginning of a text without one.
type limitState struct {
	phase phase
	match int16 // bytes of Open or Close that the text ends with
	left  int32 // tokens
}

// limited sets the state of an empty text. The caller holds the lock.
func (s State) limited() State {
	l := s.grammar.limit
	if l == nil {
		return s
	}
	s.limit = limitState{left: int32(l.Tokens)}
	if l.Open == "" {
		s.limit.phase = insidePart
	}
	return s.shut()
}

// counted is the state after the text of one token, whose derivatives are taken. The caller holds the lock.
func (s State) counted(text []byte) State {
	l := s.grammar.limit
	if l == nil || s.limit.phase == afterPart {
		return s
	}
	inside := s.limit.phase == insidePart
	for _, c := range text {
		s.limit.next(l, c)
	}
	if inside && s.limit.phase == insidePart {
		s.limit.left--
	}
	return s.shut()
}

// next adds a byte.
func (p *limitState) next(l *Limit, c byte) {
	switch p.phase {
	case beforePart:
		if l.Open[p.match] != c {
			p.phase = afterPart
		} else if p.match++; int(p.match) == len(l.Open) {
			p.phase, p.match = insidePart, 0
		}
	case insidePart:
		if p.match = int16(matched(l.Close, int(p.match), c)); int(p.match) == len(l.Close) {
			p.phase = afterPart
		}
	case afterPart:
	}
}

// matched returns how many bytes of a mark a text ends with that ended with n of them and goes on with c.
func matched(mark string, n int, c byte) int {
	text := mark[:n] + string([]byte{c})
	for len(text) > 0 && (len(text) > len(mark) || mark[:len(text)] != text) {
		text = text[1:]
	}
	return len(text)
}

// shut leaves the part if no token of it is left: the text goes on with Close, and then as it would behind Close here.
func (s State) shut() State {
	l, at := s.grammar.limit, s.node
	if s.limit.phase != insidePart || s.limit.left > 0 {
		return s
	}
	for _, c := range []byte(l.Close) {
		if s.arena.costOf(at) > maxMaskWork {
			return s
		}
		if at = s.arena.step(at, c); at.kind == kindNone {
			return s // inside a character
		}
	}
	if at = s.arena.cat(s.arena.lit(l.Close), at); at.kind != kindNone {
		s.node, s.limit.phase = at, afterPart
	}
	return s
}
