package rules

import (
	"fmt"
	"math"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Wanted is a tensor that a model must have. F32 says that only F32 will do: norms, biases and factors.
type Wanted struct {
	Role  engine.Role
	Layer int
	Dims  []int64
	F32   bool
}

// Tensors lists what a model of this shape must bind: the outer tensors first, then layer by layer.
func Tensors(d engine.ModelDesc) []Wanted {
	var out []Wanted
	want := func(inLayer bool, layer int) {
		for role := range engine.RoleCount {
			if role.InLayer() == inLayer && role.Of(d) {
				out = append(out, Wanted{Role: role, Layer: layer, Dims: role.Dims(d), F32: role.Vector()})
			}
		}
	}
	want(false, -1)
	for layer := range d.Layers {
		want(true, layer)
	}
	return out
}

// CheckModel refuses a shape that no engine can run, naming a member at fault.
func CheckModel(d engine.ModelDesc) error {
	for name, v := range map[string]int{
		"layers": d.Layers, "hidden": d.Hidden, "heads": d.Heads, "kv heads": d.KVHeads, "head dim": d.HeadDim,
		"ffn": d.FFN, "vocab": d.Vocab, "context": d.Context,
	} {
		if v < 1 || v > math.MaxInt32 {
			return fmt.Errorf("model %s is %d: %w", name, v, engine.ErrInvalid)
		}
	}
	switch {
	case d.Heads%d.KVHeads != 0:
		return fmt.Errorf("model has %d heads, which %d kv heads do not divide: %w", d.Heads, d.KVHeads, engine.ErrInvalid)
	case d.RopeDims < 0 || d.RopeDims > d.HeadDim || d.RopeDims%2 != 0:
		return fmt.Errorf("model rotates %d dims of heads of %d: %w", d.RopeDims, d.HeadDim, engine.ErrInvalid)
	case d.RopeStyle != engine.RopeNorm && d.RopeStyle != engine.RopeNeox:
		return fmt.Errorf("model rope style is %d: %w", d.RopeStyle, engine.ErrInvalid)
	case !(d.RopeBase > 0) || !(d.RopeScale > 0) || !finite(d.RopeBase, d.RopeScale):
		return fmt.Errorf("model rope base is %v and scale %v: %w", d.RopeBase, d.RopeScale, engine.ErrInvalid)
	case !(d.NormEps >= 0) || !(d.AttnScale >= 0) || !finite(d.NormEps, d.AttnScale):
		return fmt.Errorf("model norm eps is %v and attention scale %v: %w", d.NormEps, d.AttnScale, engine.ErrInvalid)
	}
	return nil
}

// CheckConfig refuses a runner's sizes that are out of range.
func CheckConfig(c engine.RunnerConfig) error {
	switch {
	case c.KVBlocks < 1 || c.KVBlocks > math.MaxInt32/64:
		return fmt.Errorf("runner has %d kv blocks: %w", c.KVBlocks, engine.ErrInvalid)
	case c.BlockSize != 16 && c.BlockSize != 32:
		return fmt.Errorf("runner block size is %d, want 16 or 32: %w", c.BlockSize, engine.ErrInvalid)
	case c.MaxSequences < 1 || c.MaxSequences > 1<<16:
		return fmt.Errorf("runner has %d sequences: %w", c.MaxSequences, engine.ErrInvalid)
	case c.MaxBatchedTokens < 1 || c.MaxBatchedTokens > 1<<20:
		return fmt.Errorf("runner batches %d tokens: %w", c.MaxBatchedTokens, engine.ErrInvalid)
	case c.MaxSampleRows < 1 || c.MaxSampleRows > 1<<20 || c.MaxScoreRows < 0 || c.MaxScoreRows > 1<<20:
		return fmt.Errorf("runner has %d sample rows and %d score rows: %w", c.MaxSampleRows, c.MaxScoreRows, engine.ErrInvalid)
	case c.MaxTopN < 0 || c.MaxTopN > 64:
		return fmt.Errorf("runner reports %d candidates, want 0 to 64: %w", c.MaxTopN, engine.ErrInvalid)
	case c.KVType != engine.F32 && c.KVType != engine.F16 && c.KVType != engine.BF16 && c.KVType != engine.F8:
		return fmt.Errorf("runner kv type is %d: %w", c.KVType, engine.ErrInvalid)
	case c.ActType != 0 && c.ActType != engine.F16 && c.ActType != engine.BF16:
		return fmt.Errorf("runner activation type is %d: %w", c.ActType, engine.ErrInvalid)
	case c.HostBlocks < 0 || c.HostBlocks > math.MaxInt32:
		return fmt.Errorf("runner has %d host blocks: %w", c.HostBlocks, engine.ErrInvalid)
	}
	return nil
}

// BlockBytes is the bytes of keys and values that one KV block holds.
func BlockBytes(d engine.ModelDesc, c engine.RunnerConfig) uint64 {
	head := 2 * uint64(d.HeadDim) // bytes of one token's
	switch c.KVType {
	case engine.F32:
		head = 4 * uint64(d.HeadDim)
	case engine.F8:
		head = uint64(d.HeadDim) + 4 // and its scale
	default: // F16 and BF16
	}
	return 2 * uint64(d.Layers) * uint64(d.KVHeads) * uint64(c.BlockSize) * head
}

func finite(values ...float32) bool {
	for _, v := range values {
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return false
		}
	}
	return true
}
