package tokenizer

import (
	"fmt"
)

const (
	modelBPE    = "gpt2"
	modelSPM    = "llama"
	modelGemma4 = "gemma4"
)

// Tokenizer is the vocabulary of one model. It is immutable and safe for concurrent use.
type Tokenizer struct {
	vocab   *vocab
	coder   coder
	special Special
	eog     []int32 // ascending
	addBOS  bool
	addEOS  bool
	spaced  bool  // a whole text starts with a space that is not part of it
	always  *trie // user-defined pieces
	all     *trie // user-defined, control and unknown pieces
	strips  []bool
	longest int      // bytes of the longest piece
	bytes   [][]byte // of each id
}

// coder encodes text without special tokens and has the bytes of each piece. encode may stop once
// dst exceeds opts.MaxIDs.
type coder interface {
	encode(dst []int32, text string, first bool, opts EncodeOptions) []int32
	piece(id int32) []byte
}

// New reads a vocabulary. It returns ErrVocab for one that contradicts itself and ErrUnsupported
// for an unknown kind or pre-tokenizer.
func New(src Source) (*Tokenizer, error) {
	model, ok, err := src.String(keyModel)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrVocab, err)
	case !ok:
		return nil, fmt.Errorf("%s is missing, the file has no tokenizer: %w", keyModel, ErrVocab)
	case model != modelBPE && model != modelSPM && model != modelGemma4:
		return nil, fmt.Errorf("%s is %.64q, want %q, %q or %q: %w", keyModel, model, modelBPE, modelSPM, modelGemma4, ErrUnsupported)
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
		if t.coder, err = newBPE(src, v, pre, t.special.UNK); err != nil {
			return nil, err
		}
	} else {
		s, err := newSPM(src, v, model, t.special.UNK)
		if err != nil {
			return nil, err
		}
		t.coder, t.spaced = s, s.prefix
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

// index prepares lookups by id and the search for special tokens.
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

// LongestPiece is the length in bytes of the longest piece. A text of n bytes has about
// n/LongestPiece tokens or more, so a text that is far too long can be refused without encoding it.
func (t *Tokenizer) LongestPiece() int { return t.longest }

// EncodeOptions control how text becomes ids. The zero value encodes plain text only.
type EncodeOptions struct {
	// AddSpecial adds BOS before and EOS after the text if the model's metadata says so.
	AddSpecial bool
	// ParseSpecial encodes the names of control tokens in the text as those tokens. Leave it off
	// for text from outside, so that no text can become a control token.
	ParseSpecial bool
	// SpecialWithin are ranges of the text's bytes, ascending and disjoint. The name of a control
	// token inside one of them is encoded as that token even if ParseSpecial is off. The ranges do
	// not split the text: the text between two tokens is encoded as a whole.
	SpecialWithin [][2]int
	// Continues states that the text follows other text. Otherwise a space precedes it, if the vocabulary puts one before
	// a whole text.
	Continues bool
	// MaxIDs bounds the work for a text that is useless if it has more ids. Encode may stop early
	// and then returns more than MaxIDs ids. Zero: no bound.
	MaxIDs int
}

// beyond reports whether n ids exceed MaxIDs.
func (o EncodeOptions) beyond(n int) bool { return o.MaxIDs > 0 && n > o.MaxIDs }

// Encode returns the ids of a text. It never splits user-defined pieces. Equal texts and options
// give equal ids. It takes at most n log n time for n bytes. Bytes that are not UTF-8 are encoded
// as bytes. Text that a vocabulary without byte pieces cannot express becomes the unknown token, or
// nothing without one.
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
	first := !opts.Continues
	for pos := 0; pos < len(text) && !opts.beyond(len(ids)); {
		start, end, id := find.find(text, pos, &within)
		if start > pos {
			ids = t.coder.encode(ids, text[pos:start], first, opts)
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
		pos = end
	}
	if opts.AddSpecial && t.addEOS {
		ids = append(ids, t.special.EOS)
	}
	return ids
}

func isASCIISpace(b byte) bool { return b == ' ' || b >= '\t' && b <= '\r' }

// Trailing returns the token that Encode adds after a text with AddSpecial; None if it adds none.
func (t *Tokenizer) Trailing() int32 {
	if !t.addEOS {
		return None
	}
	return t.special.EOS
}

// VocabSize returns the number of ids, which start from 0.
func (t *Tokenizer) VocabSize() int { return len(t.vocab.pieces) }

// Special returns the ids with a special role.
func (t *Tokenizer) Special() Special { return t.special }

// EndOfGeneration returns, ascending, every id that ends a generation: EOS, EOT, EOM and the end
// tokens of the well-known families. The caller must not change it.
func (t *Tokenizer) EndOfGeneration() []int32 { return t.eog }

// Piece returns the bytes of an id, special tokens by name. They need not be whole characters. The
// caller must not change them. ok is false for an id outside the vocabulary.
func (t *Tokenizer) Piece(id int32) (piece []byte, ok bool) {
	if id < 0 || int(id) >= len(t.bytes) {
		return nil, false
	}
	return t.bytes[id], true
}

// IsSpecial reports whether id is a control or unknown token, that is, structure and not text.
func (t *Tokenizer) IsSpecial(id int32) bool {
	if id < 0 || int(id) >= len(t.vocab.kinds) {
		return false
	}
	return t.vocab.kinds[id] == KindControl || t.vocab.kinds[id] == KindUnknown
}
