package tokenizer

import "fmt"

// Source returns typed values by metadata key. ok is false with a nil error if the key is absent. A
// value of another type is an error.
type Source interface {
	String(key string) (v string, ok bool, err error)
	Uint(key string) (v uint64, ok bool, err error)
	Bool(key string) (v, ok bool, err error)
	Strings(key string) (v []string, ok bool, err error)
	Ints(key string) (v []int64, ok bool, err error)
	Floats(key string) (v []float64, ok bool, err error)
}

const (
	keyName           = "general.name"
	keyModel          = "tokenizer.ggml.model"
	keyPre            = "tokenizer.ggml.pre"
	keyTokens         = "tokenizer.ggml.tokens"
	keyScores         = "tokenizer.ggml.scores"
	keyTypes          = "tokenizer.ggml.token_type"
	keyMerges         = "tokenizer.ggml.merges"
	keyBOS            = "tokenizer.ggml.bos_token_id"
	keyEOS            = "tokenizer.ggml.eos_token_id"
	keyEOT            = "tokenizer.ggml.eot_token_id"
	keyEOM            = "tokenizer.ggml.eom_token_id"
	keyUNK            = "tokenizer.ggml.unknown_token_id"
	keyPAD            = "tokenizer.ggml.padding_token_id"
	keyAddBOS         = "tokenizer.ggml.add_bos_token"
	keyAddEOS         = "tokenizer.ggml.add_eos_token"
	keyAddSpacePrefix = "tokenizer.ggml.add_space_prefix"
)

// boolOr reads a bool; explicit reports whether the key is present.
func boolOr(src Source, key string, fallback bool) (v, explicit bool, err error) {
	v, ok, err := src.Bool(key)
	if err != nil {
		return false, false, fmt.Errorf("%w: %w", ErrVocab, err)
	}
	if !ok {
		return fallback, false, nil
	}
	return v, true, nil
}

// idOr reads a token id, which must be inside a vocabulary of size pieces. If the key is absent it
// returns fallback, or None if the vocabulary is too small for it.
func idOr(src Source, key string, size int, fallback int32) (int32, error) {
	v, ok, err := src.Uint(key)
	if err != nil {
		// Some writers store "no such token" as the signed number -1.
		if signed, is := src.(interface {
			Int(string) (int64, bool, error)
		}); is {
			if i, ok, err := signed.Int(key); err == nil && ok && i == -1 {
				return None, nil
			}
		}
		return None, fmt.Errorf("%w: %w", ErrVocab, err)
	}
	switch {
	case !ok && int(fallback) < size:
		return fallback, nil
	case !ok || v == 1<<32-1:
		return None, nil
	case v >= uint64(size):
		return None, fmt.Errorf("%s is %d but the vocabulary has %d pieces: %w", key, v, size, ErrVocab)
	}
	return int32(v), nil
}
