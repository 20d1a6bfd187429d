package rules

import (
	"fmt"
	"math"

	"github.com/millrace/millrace/gpuworker/engine"
)

// CheckParams refuses sampling parameters that are out of range for a vocabulary and a number of
// candidates.
func CheckParams(p *engine.SlotParams, vocab, maxTopN int) error {
	inside := func(name string, v, low, high float32, lowIn bool) error {
		if v > low && v <= high || lowIn && v == low {
			return nil
		}
		return fmt.Errorf("%s is %v, want %v to %v: %w", name, v, low, high, engine.ErrInvalid)
	}
	for _, err := range []error{
		inside("temperature", p.Temperature, 0, math.MaxFloat32, true),
		inside("top p", p.TopP, 0, 1, true),
		inside("min p", p.MinP, 0, 1, true),
		inside("typical p", p.TypicalP, 0, 1, true),
		inside("repetition penalty", p.RepetitionPenalty, 0, math.MaxFloat32, false),
	} {
		if err != nil {
			return err
		}
	}
	switch {
	case !finite(p.PresencePenalty, p.FrequencyPenalty):
		return fmt.Errorf("presence penalty is %v and frequency penalty %v: %w", p.PresencePenalty, p.FrequencyPenalty,
			engine.ErrInvalid)
	case p.TopK < 0:
		return fmt.Errorf("top k is %d: %w", p.TopK, engine.ErrInvalid)
	case p.TopN < 0 || int(p.TopN) > maxTopN:
		return fmt.Errorf("top n is %d, want 0 to %d: %w", p.TopN, maxTopN, engine.ErrInvalid)
	case p.PenaltyWindow < -1:
		return fmt.Errorf("penalty window is %d: %w", p.PenaltyWindow, engine.ErrInvalid)
	case p.OutputIndex < 0 || p.PromptLength < 0 || p.MinTokens < 0:
		return fmt.Errorf("output index %d, prompt length %d or min tokens %d is negative: %w", p.OutputIndex, p.PromptLength,
			p.MinTokens, engine.ErrInvalid)
	case len(p.BiasIDs) != len(p.BiasValues):
		return fmt.Errorf("%d bias ids have %d values: %w", len(p.BiasIDs), len(p.BiasValues), engine.ErrInvalid)
	case p.Allowed != nil && len(p.Allowed) == 0:
		return fmt.Errorf("allowed tokens are an empty list: %w", engine.ErrInvalid)
	}
	for _, v := range p.BiasValues {
		if math.IsNaN(float64(v)) || v > math.MaxFloat32 {
			return fmt.Errorf("bias is %v: %w", v, engine.ErrInvalid)
		}
	}
	for name, ids := range map[string][]int32{"bias": p.BiasIDs, "allowed": p.Allowed, "suppressed": p.Suppressed} {
		for _, id := range ids {
			if id < 0 || int(id) >= vocab {
				return fmt.Errorf("%s token %d is not in a vocabulary of %d: %w", name, id, vocab, engine.ErrInvalid)
			}
		}
	}
	return nil
}
