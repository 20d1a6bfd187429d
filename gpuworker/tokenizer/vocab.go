package tokenizer

import (
	"fmt"
	"math"
)

// Kind is the purpose of a piece. The numbers are those of tokenizer.ggml.token_type.
type Kind uint8

// The kinds of pieces.
const (
	KindNormal      Kind = 1 // text
	KindUnknown     Kind = 2 // text that no piece covers
	KindControl     Kind = 3 // structure; never text unless requested
	KindUserDefined Kind = 4 // text that is always one piece
	KindUnused      Kind = 5
	KindByte        Kind = 6 // one byte, written <0xHH>
)

const (
	// None is "the vocabulary has no such token".
	None int32 = -1

	maxPieces     = 1 << 23 // pieces
	maxPieceBytes = 1024    // bounds the work that one piece can cause
)

// vocab is the checked table of pieces of the file.
type vocab struct {
	pieces []string
	kinds  []Kind
	byText map[string]int32 // every piece that is not empty
}

func readVocab(src Source) (*vocab, error) {
	pieces, ok, err := src.Strings(keyTokens)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrVocab, err)
	case !ok:
		return nil, fmt.Errorf("%s is missing: %w", keyTokens, ErrVocab)
	case len(pieces) == 0:
		return nil, fmt.Errorf("%s is empty: %w", keyTokens, ErrVocab)
	case len(pieces) > maxPieces:
		return nil, fmt.Errorf("%s has %d pieces, more than %d: %w", keyTokens, len(pieces), maxPieces, ErrVocab)
	}
	v := &vocab{pieces: pieces, kinds: make([]Kind, len(pieces)), byText: make(map[string]int32, len(pieces))}
	for i, p := range pieces {
		v.kinds[i] = KindNormal
		if len(p) > maxPieceBytes {
			return nil, fmt.Errorf("piece %d has %d bytes, more than %d: %w", i, len(p), maxPieceBytes, ErrVocab)
		}
		if p == "" {
			continue // has an id but never matches
		}
		if first, dup := v.byText[p]; dup {
			return nil, fmt.Errorf("pieces %d and %d are both %.64q: %w", first, i, p, ErrVocab)
		}
		v.byText[p] = int32(i)
	}
	types, ok, err := src.Ints(keyTypes)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrVocab, err)
	case ok && len(types) != len(pieces):
		return nil, fmt.Errorf("%s has %d entries for %d pieces: %w", keyTypes, len(types), len(pieces), ErrVocab)
	}
	for i, k := range types {
		switch {
		case k == 0: // undefined: plain text
		case k < 0 || k > int64(KindByte):
			return nil, fmt.Errorf("%s gives piece %d the unknown type %d: %w", keyTypes, i, k, ErrVocab)
		default:
			v.kinds[i] = Kind(k)
		}
	}
	return v, nil
}

// readScores returns one finite score for each piece.
func readScores(src Source, pieces int) ([]float64, error) {
	scores, ok, err := src.Floats(keyScores)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrVocab, err)
	case !ok:
		return nil, fmt.Errorf("%s is missing: %w", keyScores, ErrVocab)
	case len(scores) != pieces:
		return nil, fmt.Errorf("%s has %d entries for %d pieces: %w", keyScores, len(scores), pieces, ErrVocab)
	}
	for i, s := range scores {
		if math.IsNaN(s) || math.IsInf(s, 0) {
			return nil, fmt.Errorf("%s gives piece %d the score %v: %w", keyScores, i, s, ErrVocab)
		}
	}
	return scores, nil
}

// mergeable reports whether plain text may become this piece. Control pieces are excluded, so that
// text from outside can never turn into structure.
func (v *vocab) mergeable(id int32) bool {
	switch v.kinds[id] {
	case KindControl, KindUnknown, KindByte:
		return false
	}
	return true
}
