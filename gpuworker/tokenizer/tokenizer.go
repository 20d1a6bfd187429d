package tokenizer

import (
	"fmt"
	"slices"
)

const (
	modelBPE = "gpt2"
	modelSPM = "llama"
)

// Tokenizer is one model's vocabulary, ready for use. It is immutable and safe for concurrent use.
type Tokenizer struct {
	vocab   *vocab
	coder   coder
	special Special
	eog     []int32 // ascending
	addBOS  bool
	addEOS  bool
	spaced  bool  // a whole text begins with a space that is not part of it
	always  *trie // user-defined pieces
	all     *trie // user-defined, control and unknown pieces
	strips  []bool
	longest int      // bytes of the longest piece
	bytes   [][]byte // of each id
}

// coder encodes text without special tokens and knows the bytes of each piece. encode may stop where dst is beyond opts.
type coder interface {
	encode(dst []int32, text string, first bool, opts EncodeOptions) []int32
	piece(id int32) []byte
}

// New reads a vocabulary. It fails with ErrVocab for one that contradicts itself and with ErrUnsupported for a kind or a
// pre-tokenizer it does not know.
func New(src Source) (*Tokenizer, error) {
	model, ok, err := src.String(keyModel)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrVocab, err)
	case !ok:
		return nil, fmt.Errorf("%s is missing, the file has no tokenizer: %w", keyModel, ErrVocab)
	case model != modelBPE && model != modelSPM:
		return nil, fmt.Errorf("%s is %.64q, want %q or %q: %w", keyModel, model, modelBPE, modelSPM, ErrUnsupported)
	}
	var pre pretokenizer
	if model == modelBPE {
		if pre, err = readPretokenizer(src); err != nil {
			return nil, err
		}
	}
	v, err := readVocab(src)
	if err != nil {
		return nil, err
	}
	t := &Tokenizer{vocab: v}
	if t.special, err = readSpecial(src, v, model); err != nil {
		return nil, err
	}
	v.correctKinds(t.special)
	if t.eog, err = endOfGeneration(src, v, &t.special); err != nil {
		return nil, err
	}
	if err := t.readFlags(src, model, pre); err != nil {
		return nil, err
	}
	if model == modelBPE {
		t.coder, err = newBPE(src, v, pre, t.special.UNK)
	} else {
		var s *spm
		if s, err = newSPM(src, v, t.special.UNK); err == nil {
			t.coder, t.spaced = s, s.prefix
		}
	}
	if err != nil {
		return nil, err
	}
	name, _, err := src.String(keyName)
	if err != nil {
		name = "" // only used to recognise one family
	}
	t.index(name)
	return t, nil
}

func (t *Tokenizer) readFlags(src Source, model string, pre pretokenizer) error {
	addBOS, explicit, err := boolOr(src, keyAddBOS, model == modelSPM || pre.addBOS)
	if err != nil {
		return err
	}
	if explicit && addBOS && t.special.BOS == None {
		return fmt.Errorf("%s is set but %s names no token: %w", keyAddBOS, keyBOS, ErrVocab)
	}
	addEOS, _, err := boolOr(src, keyAddEOS, false)
	if err != nil {
		return err
	}
	if addEOS && t.special.EOS == None {
		return fmt.Errorf("%s is set but %s names no token: %w", keyAddEOS, keyEOS, ErrVocab)
	}
	t.addBOS, t.addEOS = addBOS && t.special.BOS != None, addEOS
	return nil
}

// index prepares what lookups by id and the search for special tokens need.
func (t *Tokenizer) index(modelName string) {
	t.always, t.all = newTrie(), newTrie()
	t.strips = make([]bool, len(t.vocab.pieces))
	t.bytes = make([][]byte, len(t.vocab.pieces))
	for i, p := range t.vocab.pieces {
		id := int32(i)
		t.bytes[i] = t.coder.piece(id)
		t.longest = max(t.longest, len(t.bytes[i]))
		t.strips[i] = stripsRight(modelName, t.vocab, id)
		if p == "" {
			continue
		}
		switch t.vocab.kinds[i] {
		case KindUserDefined:
			t.always.add(p, id, true)
			t.all.add(p, id, true)
		case KindControl, KindUnknown:
			t.all.add(p, id, false)
		}
	}
}

// LongestPiece is the number of bytes of the longest piece: a text of n bytes becomes about n/LongestPiece tokens at
// least, so that one far too long is known without encoding it.
func (t *Tokenizer) LongestPiece() int { return t.longest }

// EncodeOptions says how text becomes ids. The zero value encodes plain text and nothing else.
type EncodeOptions struct {
	// AddSpecial puts BOS before and EOS behind the text where the model's metadata asks for it.
	AddSpecial bool
	// ParseSpecial reads the names of control tokens in the text as those tokens. Leave it off for text from outside:
	// then no text can become a control token.
	ParseSpecial bool
	// SpecialWithin are ranges of the text's bytes, ascending and apart: the name of a control token that lies wholly in one of
	// them is read as that token, also where ParseSpecial is off. They do not cut the text: what lies between two tokens is
	// encoded as a whole.
	SpecialWithin [][2]int
	// MaxIDs bounds the work for a text whose ids are of no use if they are many: Encode may stop once it has more than MaxIDs
	// ids, and returns more than MaxIDs then. Zero sets no bound.
	MaxIDs int
}

// beyond reports whether n ids are more than the caller can use.
func (o EncodeOptions) beyond(n int) bool { return o.MaxIDs > 0 && n > o.MaxIDs }

// Encode returns the ids of a text; user-defined pieces in it are always taken whole. Equal texts and options give equal
// ids. Time is at most n log n in the length of the text. Bytes that are not UTF-8 are encoded as bytes; text that a
// vocabulary without byte pieces cannot write becomes the unknown token, or is left out if there is none.
func (t *Tokenizer) Encode(text string, opts EncodeOptions) []int32 {
	room := len(text)/3 + 2
	if opts.MaxIDs > 0 {
		room = min(room, opts.MaxIDs+2)
	}
	ids := make([]int32, 0, room)
	if opts.AddSpecial && t.addBOS {
		ids = append(ids, t.special.BOS)
	}
	find, within := t.always, spans(opts.SpecialWithin)
	if opts.ParseSpecial {
		within = spans{{0, len(text)}}
	}
	if len(within) > 0 {
		find = t.all
	}
	first := true
	for at := 0; at < len(text) && !opts.beyond(len(ids)); {
		start, end, id := find.find(text, at, &within)
		if start > at {
			ids = t.coder.encode(ids, text[at:start], first, opts)
			first = false
		}
		if id != None {
			ids = append(ids, id)
			first = true
			if t.strips[id] {
				for end < len(text) && isASCIISpace(text[end]) {
					end++
				}
			}
		}
		at = end
	}
	if opts.AddSpecial && t.addEOS {
		ids = append(ids, t.special.EOS)
	}
	return ids
}

func isASCIISpace(b byte) bool { return b == ' ' || b >= '\t' && b <= '\r' }

// VocabSize returns the number of ids; they run from 0.
func (t *Tokenizer) VocabSize() int { return len(t.vocab.pieces) }

// Special returns the ids with a meaning of their own.
func (t *Tokenizer) Special() Special { return t.special }

// EndOfGeneration returns, ascending, every id after which a generation is over: EOS, EOT, EOM and the end tokens of the
// well-known families. The caller must not change it.
func (t *Tokenizer) EndOfGeneration() []int32 { return t.eog }

// IsEndOfGeneration tells whether a generation is over after id.
func (t *Tokenizer) IsEndOfGeneration(id int32) bool {
	_, ok := slices.BinarySearch(t.eog, id)
	return ok
}

// AddsBOS tells whether Encode with AddSpecial begins with BOS.
func (t *Tokenizer) AddsBOS() bool { return t.addBOS }

// AddsEOS tells whether Encode with AddSpecial ends with EOS.
func (t *Tokenizer) AddsEOS() bool { return t.addEOS }

// Piece returns the bytes that an id stands for, special tokens by name; they need not be whole characters. The caller
// must not change them. ok is false for an id outside the vocabulary.
func (t *Tokenizer) Piece(id int32) (piece []byte, ok bool) {
	if id < 0 || int(id) >= len(t.bytes) {
		return nil, false
	}
	return t.bytes[id], true
}

// IsSpecial tells whether id is a control or unknown token: structure, not text.
func (t *Tokenizer) IsSpecial(id int32) bool {
	if id < 0 || int(id) >= len(t.vocab.kinds) {
		return false
	}
	return t.vocab.kinds[id] == KindControl || t.vocab.kinds[id] == KindUnknown
}

// KindOf returns the kind of an id, zero for one outside the vocabulary.
func (t *Tokenizer) KindOf(id int32) Kind {
	if id < 0 || int(id) >= len(t.vocab.kinds) {
		return 0
	}
	return t.vocab.kinds[id]
}
