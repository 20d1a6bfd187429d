package model

import (
	"errors"
	"fmt"
	"strings"

	"github.com/millrace/millrace/gpuworker/gguf"
)

const samplingPrefix = "general.sampling."

// errNotHere: a recommendation names a sampler, an order or a kind of value that does not exist here.
var errNotHere = errors.New("asks for what Millrace does not have")

// Sampling is how a model's file recommends to sample (general.sampling.*). A knob that is nil is not recommended.
type Sampling struct {
	Temperature, TopP, MinP, RepetitionPenalty *float32
	TopK, PenaltyWindow                        *int32
	// Unapplied says of every other recommendation why it is not followed.
	Unapplied []string
}

// Empty says whether no knob is recommended.
func (s Sampling) Empty() bool {
	return s.Temperature == nil && s.TopP == nil && s.MinP == nil && s.RepetitionPenalty == nil && s.TopK == nil && s.PenaltyWindow == nil
}

// readSampling reads the recommendations of a file for a vocabulary. It refuses none: a value that is out of range, and a sampler
// that does not exist here, are in Unapplied.
func readSampling(meta *gguf.Metadata, vocabulary int) (s Sampling) {
	for _, key := range meta.Keys() {
		name, ok := strings.CutPrefix(key, samplingPrefix)
		if !ok {
			continue
		}
		v, err := anyNumber(meta, key)
		if err == nil {
			err = s.set(name, v, vocabulary)
		}
		if err != nil {
			s.Unapplied = append(s.Unapplied, key+" "+err.Error())
		}
	}
	return s
}

// set applies one recommendation. What the file's own tools read as "off" is off here too.
func (s *Sampling) set(name string, v float64, vocabulary int) error {
	float := func(to **float32, most float64, above0 bool) error {
		if !(v >= 0 && v <= most) || above0 && v == 0 {
			if above0 {
				return fmt.Errorf("is %v, want a number above 0 and at most %v", v, most)
			}
			return fmt.Errorf("is %v, want 0 to %v", v, most)
		}
		x := float32(v)
		*to = &x
		return nil
	}
	whole := func(to **int32, least float64) error {
		if v != float64(int32(v)) || v < least {
			return fmt.Errorf("is %v, want a whole number of at least %v", v, least)
		}
		x := int32(v)
		*to = &x
		return nil
	}
	switch name {
	case "temp":
		v = max(v, 0) // below 0 is greedy
		return float(&s.Temperature, 100, false)
	case "top_p":
		return float(&s.TopP, 1, true)
	case "min_p":
		return float(&s.MinP, 1, false)
	case "penalty_repeat":
		return float(&s.RepetitionPenalty, 100, true)
	case "top_k":
		if v < 0 || v > float64(vocabulary) { // all tokens
			v = 0
		}
		return whole(&s.TopK, 0)
	case "penalty_last_n":
		return whole(&s.PenaltyWindow, -1)
	}
	return errNotHere
}

// anyNumber returns a number of any type.
func anyNumber(meta *gguf.Metadata, key string) (float64, error) {
	f, _, err := meta.Float(key)
	if err == nil {
		return f, nil
	}
	n, _, intErr := meta.Int(key)
	if intErr == nil {
		return float64(n), nil
	}
	return 0, errNotHere
}
