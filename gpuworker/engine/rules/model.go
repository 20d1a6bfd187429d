package rules

import (
	"fmt"
	"math"
	"slices"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Wanted is a tensor that a model must have. F32 is true if its type must be F32: norms, biases and
// factors.
type Wanted struct {
	Role  engine.Role
	Layer int
	Dims  []int64
	F32   bool
}

// Tensors returns the tensors that a model of this description must bind: the outer tensors first,
// then layer by layer.
func Tensors(d *engine.ModelDesc) []Wanted {
	var out []Wanted
	want := func(inLayer bool, layer int) {
		for role := range engine.RoleCount {
			if role.InLayer() == inLayer && role.Of(d, layer) {
				out = append(out, Wanted{Role: role, Layer: layer, Dims: role.Dims(d, layer), F32: role.Vector()})
			}
		}
	}
	want(false, -1)
	for layer := range d.Layers {
		want(true, layer)
	}
	return out
}

// Limits of a description. They are above any model and keep every product of two sizes inside 64
// bits.
const (
	maxLayers  = 4096
	maxHidden  = 1 << 20
	maxHeads   = 1 << 14
	maxHeadDim = 4096
	maxWidth   = 1 << 22
	maxVocab   = 1 << 24
	maxRopes   = 16

	maxInputWidth = 1 << 16
	maxExperts    = 4096
	maxTaps       = 64

	maxQueryLatent = 1 << 16
)

// CheckModel refuses a description that no engine can run. The error names the wrong member. It
// wraps ErrUnsupported for blocks that are described and not built, else ErrInvalid.
func CheckModel(d *engine.ModelDesc) error {
	c := checker{}
	c.between("layers", len(d.Layers), 1, maxLayers)
	c.between("hidden", d.Hidden, 1, maxHidden)
	c.between("vocab", d.Vocab, 1, maxVocab)
	c.between("context", d.Context, 1, engine.MaxContext)
	c.between("ropes", len(d.Ropes), 0, maxRopes)
	c.between("layer input width", d.LayerInputWidth, 0, maxInputWidth)
	for _, v := range []struct {
		name  string
		value float32
	}{
		{"norm eps", d.NormEps}, {"embedding scale", d.EmbeddingScale}, {"residual scale", d.ResidualScale},
		{"logit scale", d.LogitScale}, {"logit cap", d.LogitCap},
	} {
		c.notNegative(v.name, v.value)
	}
	for i := range d.Ropes {
		c.rope(fmt.Sprintf("rope %d ", i), &d.Ropes[i])
	}
	for i := range d.Layers {
		if c.err == nil {
			c.mixer(fmt.Sprintf("layer %d ", i), d, i)
			c.mlp(fmt.Sprintf("layer %d ", i), &d.Layers[i].MLP)
		}
	}
	attends := func(l engine.Layer) bool { return l.Mixer.KeepsKeys() }
	if c.err == nil && !slices.ContainsFunc(d.Layers, attends) {
		c.unsupported("has no layer of attention")
	}
	return c.err
}

// checker keeps the first error of a description.
type checker struct{ err error }

func (c *checker) invalid(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("model "+format+": %w", append(args, engine.ErrInvalid)...)
	}
}

func (c *checker) unsupported(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("model "+format+": %w", append(args, engine.ErrUnsupported)...)
	}
}

func (c *checker) between(name string, v, low, high int) {
	if v < low || v > high {
		c.invalid("%s is %d, want %d to %d", name, v, low, high)
	}
}

func (c *checker) notNegative(name string, v float32) {
	if !(v >= 0) || !finite(v) {
		c.invalid("%s is %v, want a finite number not below 0", name, v)
	}
}

func (c *checker) positive(name string, v float32) {
	if !(v > 0) || !finite(v) {
		c.invalid("%s is %v, want a finite number above 0", name, v)
	}
}

func (c *checker) rope(at string, r *engine.Rope) {
	c.between(at+"dims", r.Dims, 0, maxHeadDim)
	if r.Dims%2 != 0 {
		c.invalid("%sdims is %d, want an even number", at, r.Dims)
	}
	if r.Style != engine.RopeNorm && r.Style != engine.RopeNeox {
		c.invalid("%sstyle is %d, want %d or %d", at, r.Style, engine.RopeNorm, engine.RopeNeox)
	}
	c.positive(at+"base", r.Base)
	c.positive(at+"scale", r.Scale)
	c.notNegative(at+"magnitude", r.Magnitude)
	if r.Divisors != nil && len(r.Divisors) != r.Dims/2 {
		c.invalid("%shas %d divisors, want %d", at, len(r.Divisors), r.Dims/2)
	}
	for i, v := range r.Divisors {
		if !(v > 0) {
			c.invalid("%sdivisor %d is %v, want a number above 0", at, i, v)
		}
	}
}

func (c *checker) mixer(at string, d *engine.ModelDesc, index int) {
	m := &d.Layers[index].Mixer
	switch m.Kind {
	case engine.MixAttention:
	case engine.MixLatent:
		c.latent(at, d, m)
		return
	case engine.MixDelta, engine.MixConv:
		c.state(at, m)
		return
	default:
		c.invalid("%smixer kind is %d, want %d to %d", at, m.Kind, engine.MixAttention, engine.MixConv)
	}
	if m.Latent != 0 || m.QueryLatent != 0 {
		c.invalid("%sis attention, and has a latent", at)
	}
	if m.Conv != 0 || m.TiledHeads {
		c.invalid("%sis attention, and has a convolution or tiled heads", at)
	}
	c.between(at+"heads", m.Heads, 1, maxHeads)
	c.between(at+"kv heads", m.KVHeads, 1, maxHeads)
	c.between(at+"key dim", m.KeyDim, 1, maxHeadDim)
	c.between(at+"value dim", m.ValueDim, 1, maxHeadDim)
	c.between(at+"window", m.Window, 0, engine.MaxContext)
	c.between(at+"rope", m.Rope, engine.NoRope, len(d.Ropes)-1)
	c.between(at+"kv layer", m.KVLayer, 0, index)
	c.notNegative(at+"attention scale", m.Scale)
	c.notNegative(at+"score cap", m.ScoreCap)
	c.notNegative(at+"temperature scale", m.TemperatureScale)
	c.between(at+"temperature length", m.TemperatureLength, 0, engine.MaxContext)
	if (m.TemperatureScale != 0) != (m.TemperatureLength != 0) {
		c.invalid("%shas a temperature scale of %v and a length of %d, want both or neither", at, m.TemperatureScale, m.TemperatureLength)
	}
	if c.err != nil {
		return
	}
	if m.Heads%m.KVHeads != 0 {
		c.invalid("%shas %d heads, which %d kv heads do not divide", at, m.Heads, m.KVHeads)
	}
	if m.KeyDim != m.ValueDim {
		c.unsupported("%svalue dim is %d and key dim %d, which must be equal", at, m.ValueDim, m.KeyDim)
	}
	if m.Rope != engine.NoRope && d.Ropes[m.Rope].Dims > m.KeyDim {
		c.invalid("%srotates %d dims of heads of %d", at, d.Ropes[m.Rope].Dims, m.KeyDim)
	}
	if m.QKNorm && m.QKRowNorm {
		c.invalid("%snorms Q and K by head and by row, want one of them", at)
	}
	if m.OutGate && m.QKRowNorm {
		c.invalid("%snorms whole rows of Q, which has gates in it", at)
	}
	if m.KVLayer > 0 {
		c.shared(at, d, index)
	}
}

// latent checks attention over a latent. It has no members of other attention.
func (c *checker) latent(at string, d *engine.ModelDesc, m *engine.Mixer) {
	c.between(at+"heads", m.Heads, 1, maxHeads)
	c.between(at+"kv heads", m.KVHeads, 1, 1)
	c.between(at+"key dim", m.KeyDim, 1, maxHeadDim)
	c.between(at+"value dim", m.ValueDim, 1, maxHeadDim)
	c.between(at+"rope", m.Rope, 0, len(d.Ropes)-1)
	c.between(at+"latent", m.Latent, 1, maxHeadDim)
	c.between(at+"latent of queries", m.QueryLatent, 0, maxQueryLatent)
	c.notNegative(at+"attention scale", m.Scale)
	if c.err == nil && d.Rotated(m) >= m.KeyDim {
		c.invalid("%srotates %d dims of heads of %d, want fewer", at, d.Rotated(m), m.KeyDim)
	}
	rest := *m
	rest.Heads, rest.KVHeads, rest.KeyDim, rest.ValueDim, rest.Rope, rest.Scale = 0, 0, 0, 0, 0, 0
	rest.Latent, rest.QueryLatent, rest.NoNorm, rest.EndNorm = 0, 0, false, false
	if rest != (engine.Mixer{Kind: m.Kind}) {
		c.invalid("%sis attention over a latent, and sets what only other mixers have", at)
	}
}

// state checks a layer that carries a state. It has no members of attention.
func (c *checker) state(at string, m *engine.Mixer) {
	c.between(at+"taps", m.Conv, 2, maxTaps)
	rest := *m
	rest.Conv, rest.NoNorm, rest.EndNorm = 0, false, false
	if m.Kind == engine.MixDelta {
		c.between(at+"heads", m.Heads, 1, maxHeads)
		c.between(at+"kv heads", m.KVHeads, 1, maxHeads)
		c.between(at+"key dim", m.KeyDim, 1, maxHeadDim)
		c.between(at+"value dim", m.ValueDim, 1, maxHeadDim)
		c.notNegative(at+"attention scale", m.Scale)
		if c.err == nil && m.Heads%m.KVHeads != 0 {
			c.invalid("%shas %d heads, which %d kv heads do not divide", at, m.Heads, m.KVHeads)
		}
		rest.Heads, rest.KVHeads, rest.KeyDim, rest.ValueDim, rest.Scale, rest.TiledHeads = 0, 0, 0, 0, 0, false
	}
	if rest != (engine.Mixer{Kind: m.Kind, Rope: engine.NoRope}) {
		c.invalid("%scarries a state, and sets what only attention has", at)
	}
}

// shared checks a layer that reads the keys and values of another.
func (c *checker) shared(at string, d *engine.ModelDesc, index int) {
	m := &d.Layers[index].Mixer
	of := &d.Layers[index-m.KVLayer].Mixer
	if of.Kind != engine.MixAttention || of.KVLayer != 0 || of.KVHeads != m.KVHeads || of.KeyDim != m.KeyDim || of.ValueDim != m.ValueDim {
		c.invalid("%sreads the keys of layer %d, which has others or none of its own", at, index-m.KVLayer)
	}
}

func (c *checker) mlp(at string, m *engine.MLP) {
	switch m.Kind {
	case engine.MLPDense:
		if m.Experts != (engine.Experts{}) {
			c.invalid("%smlp is dense and has experts", at)
		}
	case engine.MLPExperts:
		c.experts(at, &m.Experts)
		if m.Experts.Apart && (m.NoNorm || m.Experts.SharedWidth == 0) {
			c.invalid("%shas experts with norms of their own, want a norm and a shared expert", at)
		}
	default:
		c.invalid("%smlp kind is %d, want %d or %d", at, m.Kind, engine.MLPDense, engine.MLPExperts)
	}
	if m.Activation < engine.SiLU || m.Activation > engine.ClampedSwish {
		c.invalid("%sactivation is %d, want %d to %d", at, m.Activation, engine.SiLU, engine.ClampedSwish)
	}
	c.between(at+"ffn", m.Width, 1, maxWidth)
}

func (c *checker) experts(at string, e *engine.Experts) {
	c.between(at+"experts", e.Count, 1, maxExperts)
	c.between(at+"experts used", e.Used, 1, e.Count)
	if e.Gating != engine.GateSoftmax && e.Gating != engine.GateSigmoid {
		c.invalid("%sgating is %d, want %d or %d", at, e.Gating, engine.GateSoftmax, engine.GateSigmoid)
	}
	c.between(at+"groups of experts", e.Groups, 0, e.Count)
	c.notNegative(at+"weight scale", e.WeightScale)
	c.between(at+"shared ffn", e.SharedWidth, 0, maxWidth)
	if e.SharedGate && e.SharedWidth == 0 {
		c.invalid("%sgates a shared expert and has none", at)
	}
	if c.err != nil {
		return
	}
	if e.Groups == 0 {
		if e.GroupsUsed != 0 || e.GroupBestTwo {
			c.invalid("%suses groups of experts and has none", at)
		}
		return
	}
	c.between(at+"groups used", e.GroupsUsed, 1, e.Groups)
	if e.Count%e.Groups != 0 {
		c.invalid("%shas %d experts, which %d groups do not divide", at, e.Count, e.Groups)
		return
	}
	if c.err == nil && e.Used > e.Count/e.Groups*e.GroupsUsed {
		c.invalid("%suses %d experts, but %d groups of %d have fewer", at, e.Used, e.GroupsUsed, e.Count/e.Groups)
	}
}

// CheckConfig refuses sizes of a runner that are out of range.
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
	case c.MaxHiddenRows < 0 || c.MaxHiddenRows > 1<<20:
		return fmt.Errorf("runner has %d hidden rows: %w", c.MaxHiddenRows, engine.ErrInvalid)
	case c.MaxTopN < 0 || c.MaxTopN > 64:
		return fmt.Errorf("runner reports %d candidates, want 0 to 64: %w", c.MaxTopN, engine.ErrInvalid)
	case c.KVType != engine.F32 && c.KVType != engine.F16 && c.KVType != engine.BF16 && c.KVType != engine.F8:
		return fmt.Errorf("runner kv type is %d: %w", c.KVType, engine.ErrInvalid)
	case c.ActType != 0 && c.ActType != engine.F16 && c.ActType != engine.BF16:
		return fmt.Errorf("runner activation type is %d: %w", c.ActType, engine.ErrInvalid)
	case c.HostBlocks < 0 || c.HostBlocks > math.MaxInt32:
		return fmt.Errorf("runner has %d host blocks: %w", c.HostBlocks, engine.ErrInvalid)
	case c.WindowBlocks < 0 || c.WindowBlocks > math.MaxInt32/64 || c.HostWindowBlocks < 0 || c.HostWindowBlocks > math.MaxInt32:
		return fmt.Errorf("runner has %d window blocks and %d of host memory: %w", c.WindowBlocks, c.HostWindowBlocks, engine.ErrInvalid)
	case c.WindowBlocks == 0 && c.HostWindowBlocks != 0:
		return fmt.Errorf("runner has %d window blocks of host memory and none of the device: %w", c.HostWindowBlocks, engine.ErrInvalid)
	case c.SavedStates < 0 || c.SavedStates > 1<<20 || c.HostStates < 0 || c.HostStates > 1<<20:
		return fmt.Errorf("runner has %d saved states and %d of host memory: %w", c.SavedStates, c.HostStates, engine.ErrInvalid)
	}
	return nil
}

// CheckRunner is CheckConfig for a runner of a model.
func CheckRunner(d *engine.ModelDesc, c engine.RunnerConfig) error {
	for i := range d.Layers {
		if c.KVType == engine.F8 && d.Layers[i].Mixer.Kind == engine.MixLatent {
			// One scale would be of both the latent and the rotated key.
			return fmt.Errorf("model layer %d has attention over a latent, of which no cache of f8 is built, want f16, bf16 or f32: %w", i, engine.ErrUnsupported)
		}
	}
	if d.StateFloats() == 0 && (c.SavedStates != 0 || c.HostStates != 0) {
		return fmt.Errorf("runner has %d saved states and %d of host memory, and no layer of the model carries a state: %w",
			c.SavedStates, c.HostStates, engine.ErrInvalid)
	}
	if c.WindowBlocks != 0 && d.GroupWindow() == 0 {
		return fmt.Errorf("runner has %d window blocks, and no layer of the model has a window that is shorter than the context: %w",
			c.WindowBlocks, engine.ErrInvalid)
	}
	return CheckConfig(c)
}

// BlockBytes returns the bytes of keys and values in one KV block, over all layers of its group
// that have their own. Without a window group all layers are in the first. A latent is key and
// value at once.
func BlockBytes(d *engine.ModelDesc, c engine.RunnerConfig, window bool) uint64 {
	var heads uint64 // bytes of one token's keys and values
	for i := range d.Layers {
		m := &d.Layers[i].Mixer
		if window != (c.WindowBlocks > 0 && d.InWindowGroup(i)) {
			continue
		}
		switch {
		case m.Kind == engine.MixLatent:
			heads += headBytes(c.KVType, uint64(m.Latent+d.Rotated(m)))
		case m.Kind == engine.MixAttention && m.KVLayer == 0:
			for _, dim := range []int{m.KeyDim, m.ValueDim} {
				heads += uint64(m.KVHeads) * headBytes(c.KVType, uint64(dim))
			}
		}
	}
	return uint64(c.BlockSize) * heads
}

// headBytes returns the bytes of one head of one token.
func headBytes(t engine.Type, dim uint64) uint64 {
	switch t {
	case engine.F32:
		return 4 * dim
	case engine.F8:
		return dim + 4 // and its scale
	default: // F16 and BF16
		return 2 * dim
	}
}

func finite(values ...float32) bool {
	for _, v := range values {
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return false
		}
	}
	return true
}
