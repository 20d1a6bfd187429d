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

// spm is SentencePiece BPE: a text starts as single characters, and neighbours merge while the
// result is a piece, the highest score first. Remaining characters without a piece become byte
// pieces. Gemma 4 has a list of merges in place of scores.
type spm struct {
	vocab     *vocab
	pairs     *pairTable
	runeSym   map[rune]int32 // a character that is a piece or part of one; ids from len(pieces) on are internal
	asciiSym  [128]int32
	extras    []rune // characters of the symbols from len(pieces) on
	bytePiece [256]int32
	joins     runePairs // which characters are adjacent in some piece
	prefix    bool      // a text starts with a space
	gemma4    bool
	unk       int32
	mergers   sync.Pool
}

func newSPM(src Source, v *vocab, model string, unk int32) (*spm, error) {
	prefix, _, err := boolOr(src, keyAddSpacePrefix, model == modelSPM)
	if err != nil {
		return nil, err
	}
	s := &spm{vocab: v, prefix: prefix, gemma4: model == modelGemma4, unk: unk, runeSym: map[rune]int32{}}
	if err := s.readBytes(); err != nil {
		return nil, err
	}
	s.readRunes()
	if err := s.readPairs(src); err != nil {
		return nil, err
	}
	for c := range s.asciiSym {
		s.asciiSym[c] = None
		if id, ok := s.runeSym[rune(c)]; ok {
			s.asciiSym[c] = id
		}
	}
	s.mergers.New = func() any { return &merger{pairs: s.pairs} }
	return s, nil
}

// readBytes finds the byte pieces. If one is missing, there must be an unknown token.
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

// usable reports whether text may become the piece of an id.
func (s *spm) usable(id int32) bool {
	p := s.vocab.pieces[id]
	return s.vocab.mergeable(id) && p != "" && utf8.ValidString(p)
}

// readRunes gives every character of a usable piece a symbol and records which are adjacent.
func (s *spm) readRunes() {
	for i, p := range s.vocab.pieces {
		if !s.usable(int32(i)) {
			continue
		}
		last := rune(-1)
		for _, r := range p {
			if _, ok := s.runeSym[r]; !ok {
				if id, ok := s.vocab.byText[string(r)]; ok && s.usable(id) {
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
}

// symbolOf returns the symbol of a usable piece or of a character.
func (s *spm) symbolOf(text string) (int32, bool) {
	if id, ok := s.vocab.byText[text]; ok && s.usable(id) {
		return id, true
	}
	r, n := utf8.DecodeRuneInString(text)
	if n != len(text) {
		return None, false
	}
	id, ok := s.runeSym[r]
	return id, ok
}

// readPairs records every way to create a piece by merging two symbols.
func (s *spm) readPairs(src Source) error {
	if s.gemma4 {
		return s.readMergedPairs(src)
	}
	scores, err := readScores(src, len(s.vocab.pieces))
	if err != nil {
		return err
	}
	rank := scoreRanks(scores)
	total := 0
	for i, p := range s.vocab.pieces {
		if s.usable(int32(i)) {
			total += utf8.RuneCountInString(p) - 1
		}
	}
	s.pairs = newPairTable(total)
	for i, p := range s.vocab.pieces {
		if !s.usable(int32(i)) {
			continue
		}
		for cut := range p {
			if cut == 0 {
				continue
			}
			if l, ok := s.symbolOf(p[:cut]); ok {
				if r, ok := s.symbolOf(p[cut:]); ok {
					s.pairs.add(l, r, rank[i], int32(i))
				}
			}
		}
	}
	return nil
}

// readMergedPairs records the merges of the file. It ignores those from or to structure, because
// text must not become it.
func (s *spm) readMergedPairs(src Source) error {
	merges, err := readMerges(src)
	if err != nil {
		return err
	}
	s.pairs = newPairTable(len(merges))
	for i, m := range merges {
		left, right, err := cutMerge(i, m)
		if err != nil {
			return err
		}
		id, ok := s.vocab.byText[left+right]
		if !ok {
			return fmt.Errorf("merge %d makes %.64q, which is no piece: %w", i, left+right, ErrVocab)
		}
		if !s.usable(id) {
			continue
		}
		l, leftOK := s.symbolOf(left)
		r, rightOK := s.symbolOf(right)
		if leftOK && rightOK {
			s.pairs.add(l, r, uint32(i), id)
		}
	}
	return nil
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

// encode appends the ids of a text without special tokens. first reports whether the text starts
// the whole or follows a special token, where the space prefix belongs.
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
		if id, n := s.breaks(text, i); n > 0 {
			dst = append(s.flush(dst, m), id)
			last, i = -1, i+n
			continue
		}
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
		// No piece has these two characters next to each other: everything before is final.
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

// breaks returns the piece of a whole run of line breaks that begins at i, and its length; 0 without
// such a piece. Gemma 4 has pieces for runs of up to 31, and not every file has merges to them.
func (s *spm) breaks(text string, i int) (id int32, n int) {
	if !s.gemma4 || text[i] != '\n' || i > 0 && text[i-1] == '\n' {
		return None, 0
	}
	for i+n < len(text) && n <= maxPieceBytes && text[i+n] == '\n' {
		n++
	}
	if id, ok := s.vocab.byText[text[i:i+n]]; ok && s.usable(id) {
		return id, n
	}
	return None, 0
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

// unknownRune is a negative symbol, which never merges and remembers its character.
func unknownRune(r rune) int32 { return -2 - r }
func unknownByte(b byte) int32 { return -2 - (utf8.MaxRune + 1) - int32(b) }

// flush merges the collected symbols and appends their ids.
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

// fallback encodes a character as byte pieces, or as one unknown token if a byte has no piece.
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

// piece returns the bytes of an id.
func (s *spm) piece(id int32) []byte {
	p := s.vocab.pieces[id]
	switch s.vocab.kinds[id] {
	case KindNormal, KindUnused:
		return []byte(strings.ReplaceAll(p, spaceMark, " "))
	case KindUserDefined:
		if s.gemma4 { // runs of spaces are user-defined
			return []byte(strings.ReplaceAll(p, spaceMark, " "))
		}
	case KindByte:
		var b byte
		_, _ = fmt.Sscanf(p, "<0x%02X>", &b) // checked by readBytes
		return []byte{b}
	}
	return []byte(p)
}

// runePairs is a set of character pairs that may contain more than was added, never less.
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
