package tokenizer

import "errors"

var (
	// ErrVocab means that the vocabulary contradicts itself: the model file is damaged or hostile.
	ErrVocab = errors.New("invalid vocabulary")
	// ErrUnsupported means that the package does not implement this kind of vocabulary. The message
	// names it.
	ErrUnsupported = errors.New("unsupported tokenizer")
	// ErrTokenID means that an id is outside the vocabulary.
	ErrTokenID = errors.New("token id out of range")
)
