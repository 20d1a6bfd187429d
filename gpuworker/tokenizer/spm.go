package tokenizer

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
	"unicode/utf8"
)

// spaceMark is how SentencePiece writes a space inside pieces.
const spaceMark = "▁"

// spm is SentencePiece BPE: a text begins as single characters and neighbours merge while the result is a piece, the
// highest score first. Characters left over that are no piece become byte pieces.
type spm struct {
	vocab     *vocab
	pairs     *pairTable
	runeSym   map[rune]int32 // a character that is a piece or part of one; ids from len(pieces) on are no pieces
	asciiSym  [128]int32
	extras    []rune // characters of the symbols from len(pieces) on
	bytePiece [256]int32
	joins     runePairs // which characters stand side by side in some piece
	prefix    bool      // a text begins with a space
	unk       int32
	mergers   sync.Pool
}

func newSPM(src Source, v *vocab, unk int32) (*spm, error) {
	scores, err := readScores(src, len(v.pieces))
	if err != nil {
		return nil, err
	}
	prefix, _, err := boolOr(src, keyAddSpacePrefix, true)
	if err != nil {
		return nil, err
	}
	s := &spm{vocab: v, prefix: prefix, unk: unk, runeSym: map[rune]int32{}}
	if err := s.readBytes(); err != nil {
		return nil, err
	}
	s.readPairs(scores)
	for c := range s.asciiSym {
		s.asciiSym[c] = None
		if id, ok := s.runeSym[rune(c)]; ok {
			s.asciiSym[c] = id
		}
	}
	s.mergers.New = func() any { return &merger{pairs: s.pairs} }
	return s, nil
}

// readBytes finds the byte pieces; without all of them there must be an unknown token.
func (s *spm) readBytes() error {
	missing := -1
	for b := range s.bytePiece {
		s.bytePiece[b] = None
		if id, ok := s.vocab.byText[fmt.Sprintf("<0x%02X>", b)]; ok && s.vocab.kinds[id] == KindByte {
			s.bytePiece[b] = id
		} else {
			missing = b
		}
	}
	for i, k := range s.vocab.kinds {
		if k != KindByte {
			continue
		}
		var b byte
		if n, err := fmt.Sscanf(s.vocab.pieces[i], "<0x%02X>", &b); n != 1 || err != nil || s.bytePiece[b] != int32(i) {
			return fmt.Errorf("byte piece %d is %.64q, want <0xHH>: %w", i, s.vocab.pieces[i], ErrVocab)
		}
	}
	if missing >= 0 && s.unk == None {
		return fmt.Errorf("there is no piece for byte 0x%02X and no unknown token: %w", missing, ErrVocab)
	}
	return nil
}

// readPairs writes down every way in which a piece can come about by merging two symbols.
func (s *spm) readPairs(scores []float64) {
	rank := scoreRanks(scores)
	total := 0
	usable := func(i int) bool {
		return s.vocab.mergeable(int32(i)) && s.vocab.pieces[i] != "" && utf8.ValidString(s.vocab.pieces[i])
	}
	for i, p := range s.vocab.pieces {
		if !usable(i) {
			continue
		}
		total += utf8.RuneCountInString(p) - 1
		last := rune(-1)
		for _, r := range p {
			if _, ok := s.runeSym[r]; !ok {
				if id, ok := s.vocab.byText[string(r)]; ok && usable(int(id)) {
					s.runeSym[r] = id
				} else {
					s.runeSym[r] = int32(len(s.vocab.pieces) + len(s.extras))
					s.extras = append(s.extras, r)
				}
			}
			if last >= 0 {
				s.joins.add(last, r)
			}
			last = r
		}
	}
	symbol := func(text string) (int32, bool) {
		if id, ok := s.vocab.byText[text]; ok && usable(int(id)) {
			return id, true
		}
		r, n := utf8.DecodeRuneInString(text)
		if n != len(text) {
			return None, false
		}
		id, ok := s.runeSym[r]
		return id, ok
	}
	s.pairs = newPairTable(total)
	for i, p := range s.vocab.pieces {
		if !usable(i) {
			continue
		}
		for cut := range p {
			if cut == 0 {
				continue
			}
			if l, ok := symbol(p[:cut]); ok {
				if r, ok := symbol(p[cut:]); ok {
					s.pairs.add(l, r, rank[i], int32(i))
				}
			}
		}
	}
}

// scoreRanks numbers the scores from the highest down; equal scores share a number.
func scoreRanks(scores []float64) []uint32 {
	sorted := slices.Clone(scores)
	slices.Sort(sorted)
	sorted = slices.Compact(sorted)
	ranks := make([]uint32, len(scores))
	for i, sc := range scores {
		ranks[i] = uint32(len(sorted) - 1 - sort.SearchFloat64s(sorted, sc))
	}
	return ranks
}

// encode appends the ids of a text that holds no special token. first tells whether the text begins the whole or follows
// a special token, where the space prefix belongs.
func (s *spm) encode(dst []int32, text string, first bool, opts EncodeOptions) []int32 {
	m := s.mergers.Get().(*merger)
	m.syms = m.syms[:0]
	last := rune(-1)
	if first && s.prefix && text != "" {
		m.syms, last = append(m.syms, s.symbol('▁')), '▁'
		if m.syms[0] < 0 {
			m.syms[0] = unknownRune('▁')
		}
	}
	for i := 0; i < len(text) && !opts.beyond(len(dst)); {
		r, n := rune(text[i]), 1
		if r >= utf8.RuneSelf {
			r, n = utf8.DecodeRuneInString(text[i:])
		}
		var sym int32
		switch {
		case r == ' ':
			r, sym = '▁', s.symbol('▁')
		case r == utf8.RuneError && n == 1:
			sym = unknownByte(text[i])
		default:
			sym = s.symbol(r)
		}
		if sym == None {
			sym = unknownRune(r)
		}
		// No piece holds this character after the last one: what is left of here is settled.
		if last >= 0 && !s.joins.has(last, r) {
			dst = s.flush(dst, m)
		}
		m.syms = append(m.syms, sym)
		last = r
		i += n
	}
	dst = s.flush(dst, m)
	if cap(m.syms) <= maxScratch {
		s.mergers.Put(m)
	}
	return dst
}

func (s *spm) symbol(r rune) int32 {
	if r < utf8.RuneSelf {
		return s.asciiSym[r]
	}
	if id, ok := s.runeSym[r]; ok {
		return id
	}
	return None
}

// Symbols below zero merge with nothing and remember what they stand for.
func unknownRune(r rune) int32 { return -2 - r }
func unknownByte(b byte) int32 { return -2 - (utf8.MaxRune + 1) - int32(b) }

// flush merges the symbols gathered so far and appends their ids.
func (s *spm) flush(dst []int32, m *merger) []int32 {
	m.merge()
	for _, sym := range m.syms {
		switch {
		case sym >= 0 && int(sym) < len(s.vocab.pieces):
			dst = append(dst, sym)
		case sym >= 0:
			dst = s.fallback(dst, []byte(string(s.extras[int(sym)-len(s.vocab.pieces)])))
		case sym <= unknownByte(0):
			dst = s.fallback(dst, []byte{byte(unknownByte(0) - sym)})
		default:
			dst = s.fallback(dst, []byte(string(-2-sym)))
		}
	}
	m.syms = m.syms[:0]
	return dst
}

// fallback writes a character as byte pieces, or as one unknown token if a byte has none.
func (s *spm) fallback(dst []int32, raw []byte) []int32 {
	from := len(dst)
	for _, b := range raw {
		id := s.bytePiece[b]
		if id == None {
			return append(dst[:from], s.unk)
		}
		dst = append(dst, id)
	}
	return dst
}

// piece returns the bytes that an id stands for.
func (s *spm) piece(id int32) []byte {
	p := s.vocab.pieces[id]
	switch s.vocab.kinds[id] {
	case KindNormal, KindUnused:
		return []byte(strings.ReplaceAll(p, spaceMark, " "))
	case KindByte:
		var b byte
		_, _ = fmt.Sscanf(p, "<0x%02X>", &b) // checked by readBytes
		return []byte{b}
	}
	return []byte(p)
}

// runePairs is a set of character pairs that may hold more than was added, never less.
type runePairs [1 << 12]uint64

func (p *runePairs) bit(a, b rune) (word int, mask uint64) {
	h := (uint64(a)<<21 | uint64(b)) * 0x9E3779B97F4A7C15 >> 46
	return int(h >> 6), 1 << (h & 63)
}

func (p *runePairs) add(a, b rune) {
	w, m := p.bit(a, b)
	p[w] |= m
}

func (p *runePairs) has(a, b rune) bool {
	w, m := p.bit(a, b)
	return p[w]&m != 0
}
