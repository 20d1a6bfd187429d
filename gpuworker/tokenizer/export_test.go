package tokenizer

import "slices"

// IsEndOfGeneration reports whether id ends a generation.
func (t *Tokenizer) IsEndOfGeneration(id int32) bool {
	_, ok := slices.BinarySearch(t.eog, id)
	return ok
}

// AddsBOS reports whether Encode with AddSpecial adds BOS.
func (t *Tokenizer) AddsBOS() bool { return t.addBOS }

// AddsEOS reports whether Encode with AddSpecial adds EOS.
func (t *Tokenizer) AddsEOS() bool { return t.addEOS }

// KindOf returns the kind of an id; zero for an id outside the vocabulary.
func (t *Tokenizer) KindOf(id int32) Kind {
	if id < 0 || int(id) >= len(t.vocab.kinds) {
		return 0
	}
	return t.vocab.kinds[id]
}

// Pretokenizers returns the supported values of tokenizer.ggml.pre, sorted.
func Pretokenizers() []string {
	names := make([]string, 0, len(pretokenizers))
	for name := range pretokenizers {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
