package model

import (
	"fmt"
	"strings"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Difference is an option whose value is not the one wanted. Name is the contract's.
type Difference struct{ Name, Have, Want string }

// OptionsError is ErrOptions with every option that differs.
type OptionsError struct {
	Model string
	State string // of the model: "is loaded", "is being loaded"
	All   []Difference
}

// Error implements error.
func (e *OptionsError) Error() string {
	var have, want []string
	for _, d := range e.All {
		have, want = append(have, d.Name+" "+d.Have), append(want, d.Name+" "+d.Want)
	}
	return fmt.Sprintf("%v: %q %s with %s, and the request wants %s: leave that open to take the model as it is, or unload it first",
		ErrOptions, e.Model, e.State, strings.Join(have, ", "), strings.Join(want, ", "))
}

// Unwrap is ErrOptions.
func (e *OptionsError) Unwrap() error { return ErrOptions }

// kvNames are the contract's names of the types of a KV cache.
var kvNames = map[engine.Type]string{engine.F32: "f32", engine.F16: "f16", engine.BF16: "bf16", engine.F8: "f8"}

// differ returns an *OptionsError if want sets an option that o sets to another value, else nil. What either leaves open does not
// differ, nor do KV caches of as many blocks of size tokens: a cache is made of whole blocks.
func (o Options) differ(name, state string, want Options, size int) error {
	e := &OptionsError{Model: name, State: state}
	number := func(option string, have, want uint64) {
		if have != 0 && want != 0 && have != want {
			e.All = append(e.All, Difference{option, fmt.Sprint(have), fmt.Sprint(want)})
		}
	}
	number("context_length", uint64(o.Context), uint64(want.Context))
	if block := uint64(size); (o.KVTokens+block-1)/block != (want.KVTokens+block-1)/block {
		number("kv_tokens", o.KVTokens, want.KVTokens)
	}
	if o.KVType != nil && want.KVType != nil && *o.KVType != *want.KVType {
		e.All = append(e.All, Difference{"kv_type", kvNames[*o.KVType], kvNames[*want.KVType]})
	}
	number("max_sequences", uint64(o.MaxSequences), uint64(want.MaxSequences))
	if e.All == nil {
		return nil
	}
	return e
}

// meets refuses what o expects of a loaded model and it is not: with ErrDigest, or an *OptionsError.
func (i *Instance) meets(o Options) error {
	if o.ExpectDigest != nil && *o.ExpectDigest != i.Digest {
		return fmt.Errorf("%w: %q is loaded with %x, expected %x", ErrDigest, i.Name, i.Digest, *o.ExpectDigest)
	}
	has := Options{
		Context: uint32(i.Context), KVTokens: uint64(i.Runner.KVBlocks) * uint64(i.Runner.BlockSize), KVType: &i.Runner.KVType,
		MaxSequences: uint32(i.Runner.MaxSequences),
	}
	return has.differ(i.Name, "is loaded", o, i.Runner.BlockSize)
}
