package tokenizer

import (
	"fmt"
	"slices"
	"strings"
	"sync"
)

// bpe is byte-level BPE: a word starts as single bytes, and neighbours merge by rank. Symbols below
// len(vocab.pieces) are token ids. Those above are strings that merges name but that are not a
// piece which text may become.
type bpe struct {
	vocab        *vocab
	split        splitter
	pairs        *pairTable
	byteSym      [256]int32 // symbol of a byte; None if it is neither a piece nor in a merge
	words        map[string]int32
	extras       [][]byte // bytes of the symbols from len(vocab.pieces) on
	ignoreMerges bool     // a word that is a piece is encoded as that piece
	unk          int32
	mergers      sync.Pool
}

func newBPE(src Source, v *vocab, pre pretokenizer, unk int32) (*bpe, error) {
	merges, err := readMerges(src)
	if err != nil {
		return nil, err
	}
	b := &bpe{vocab: v, split: pre.split, ignoreMerges: pre.ignoreMerges, unk: unk, pairs: newPairTable(len(merges))}
	extra := map[string]int32{}
	symbol := func(text string) int32 {
		if id, ok := v.byText[text]; ok && v.mergeable(id) {
			return id
		}
		if id, ok := extra[text]; ok {
			return id
		}
		id := int32(len(v.pieces) + len(b.extras))
		raw, ok := byteLevel(text)
		if !ok {
			raw = []byte(text)
		}
		extra[text] = id
		b.extras = append(b.extras, raw)
		return id
	}
	for i, m := range merges {
		left, right, err := cutMerge(i, m)
		if err != nil {
			return nil, err
		}
		b.pairs.add(symbol(left), symbol(right), uint32(i), symbol(left+right))
	}
	for c := range b.byteSym {
		b.byteSym[c] = None
		text := string(runeOfByte[c])
		if id, ok := v.byText[text]; ok && v.mergeable(id) {
			b.byteSym[c] = id
		} else if id, ok := extra[text]; ok {
			b.byteSym[c] = id
		}
	}
	if b.ignoreMerges {
		b.words = make(map[string]int32, len(v.pieces))
		for i, p := range v.pieces {
			if raw, ok := byteLevel(p); ok && v.kinds[i] == KindNormal {
				b.words[string(raw)] = int32(i)
			}
		}
	}
	b.mergers.New = func() any { return &merger{pairs: b.pairs} }
	return b, nil
}

func readMerges(src Source) ([]string, error) {
	merges, ok, err := src.Strings(keyMerges)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrVocab, err)
	case !ok:
		return nil, fmt.Errorf("%s is missing: %w", keyMerges, ErrVocab)
	case len(merges) > 2*maxPieces:
		return nil, fmt.Errorf("%s has %d entries, more than %d: %w", keyMerges, len(merges), 2*maxPieces, ErrVocab)
	}
	return merges, nil
}

// cutMerge returns the two sides of merge i.
func cutMerge(i int, m string) (left, right string, err error) {
	if len(m) > 2*maxPieceBytes {
		return "", "", fmt.Errorf("merge %d has %d bytes, more than %d: %w", i, len(m), 2*maxPieceBytes, ErrVocab)
	}
	// The left side may start with a space but not be empty.
	cut := -1
	if len(m) > 1 {
		cut = strings.IndexByte(m[1:], ' ') + 1
	}
	if cut < 1 || cut+1 >= len(m) {
		return "", "", fmt.Errorf("merge %d is %.64q, want two pieces with a space between: %w", i, m, ErrVocab)
	}
	return m[:cut], m[cut+1:], nil
}

// encode appends the ids of a text that holds no special token.
func (b *bpe) encode(dst []int32, text string, _ bool, opts EncodeOptions) []int32 {
	m := b.mergers.Get().(*merger)
	b.split.each(text, func(word string) (goOn bool) {
		if opts.beyond(len(dst)) {
			return false
		}
		if b.ignoreMerges {
			if id, ok := b.words[word]; ok {
				dst = append(dst, id)
				return true
			}
		}
		m.syms = slices.Grow(m.syms[:0], len(word))
		for i := range len(word) {
			s := b.byteSym[word[i]]
			if s == None {
				s = -2 - int32(word[i]) // never merges, and remembers the byte
			}
			m.syms = append(m.syms, s)
		}
		m.merge()
		for _, s := range m.syms {
			dst = b.emit(dst, s)
		}
		return true
	})
	if cap(m.syms) <= maxScratch {
		b.mergers.Put(m)
	}
	return dst
}

// maxScratch is the number of symbols above which scratch space is not kept.
const maxScratch = 1 << 16

func (b *bpe) emit(dst []int32, sym int32) []int32 {
	switch {
	case sym >= 0 && int(sym) < len(b.vocab.pieces):
		return append(dst, sym)
	case sym >= 0:
		raw := b.extras[int(sym)-len(b.vocab.pieces)]
		for _, c := range raw {
			if s := b.byteSym[c]; s >= 0 && int(s) < len(b.vocab.pieces) {
				dst = append(dst, s)
			} else {
				dst = b.unknown(dst)
			}
		}
		return dst
	}
	return b.unknown(dst)
}

// unknown encodes a byte that the vocabulary lacks: as the unknown token if there is one, else as
// nothing.
func (b *bpe) unknown(dst []int32) []int32 {
	if b.unk != None {
		dst = append(dst, b.unk)
	}
	return dst
}

// piece returns the bytes of an id.
func (b *bpe) piece(id int32) []byte {
	p := b.vocab.pieces[id]
	if b.vocab.kinds[id] == KindNormal || b.vocab.kinds[id] == KindUnused {
		if raw, ok := byteLevel(p); ok {
			return raw
		}
	}
	return []byte(p)
}
