package synth_test

import (
	"bytes"
	"errors"
	"io"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/gguf/dequant"
	"github.com/millrace/millrace/gpuworker/synth"
)

// weightTypes are all types Write takes.
var weightTypes = []gguf.Type{
	gguf.F32, gguf.F16, gguf.BF16, gguf.Q8_0, gguf.Q4_0, gguf.Q4_1, gguf.Q5_0, gguf.Q5_1, gguf.Q4K, gguf.Q5K, gguf.Q6K, gguf.IQ4NL,
	gguf.Q2K, gguf.Q3K, gguf.IQ4XS, gguf.IQ2XXS, gguf.IQ2XS, gguf.IQ2S, gguf.IQ3XXS, gguf.IQ3S, gguf.MXFP4, gguf.NVFP4,
}

// small is a shape whose rows suit every type: 256 wide with an FFN of 512.
func small() synth.Shape {
	return synth.Shape{Name: "small", Architecture: "llama", Desc: engine.Uniform{Layers: 2, Hidden: 256, Heads: 4, KVHeads: 2, FFN: 512, Vocab: 300}}
}

func write(t testing.TB, shape synth.Shape, typ gguf.Type, seed uint64) *gguf.File {
	t.Helper()
	var buf bytes.Buffer
	require.NoError(t, synth.Write(&buf, shape, synth.Only(typ), seed))
	f, err := gguf.Parse(buf.Bytes())
	require.NoError(t, err)
	return f
}

func weights(t testing.TB, f *gguf.File, tensor gguf.Tensor) []float64 {
	t.Helper()
	dst := make([]float64, tensor.Elements())
	require.NoError(t, dequant.Dequantize(tensor.Type, f.Bytes(tensor), dst))
	return dst
}

func TestWeightsAreCenteredAndScaled(t *testing.T) {
	// Weights of every type are centred and scaled by the row length.
	for _, typ := range weightTypes {
		t.Run(typ.String(), func(t *testing.T) {
			f := write(t, small(), typ, 1)
			for _, tensor := range f.Tensors() {
				if len(tensor.Dims) == 1 {
					continue
				}
				require.Equal(t, typ, tensor.Type, tensor.Name)
				var sum, squares float64
				values := weights(t, f, tensor)
				distinct := map[float64]bool{}
				for i, v := range values {
					sum, squares = sum+v, squares+v*v
					if i < 20000 {
						distinct[v] = true
					}
				}
				n, want := float64(len(values)), 1/math.Sqrt(float64(tensor.Dims[0]))
				require.InDelta(t, 1, math.Sqrt(squares/n)/want, 0.08, "%s: standard deviation against %g", tensor.Name, want)
				require.InDelta(t, 0, sum/n/want, 0.05, "%s: mean in standard deviations", tensor.Name)
				vary := 1000
				switch typ {
				case gguf.MXFP4: // three powers of two times fifteen numbers, most of which are in two
					vary = 20
				case gguf.NVFP4: // scales of three bits
					vary = 40
				}
				require.Greater(t, len(distinct), vary, "%s: scales vary", tensor.Name)
			}
		})
	}
}

func TestEveryQuantAndEverySubBlockScaleIsInUse(t *testing.T) {
	for _, typ := range weightTypes[3:] {
		f := write(t, small(), typ, 1)
		tensor, _ := f.Tensor("blk.0.ffn_up.weight")
		raw, size := f.Bytes(tensor), int(typ.BlockBytes())
		for offset := range size {
			seen := map[byte]bool{}
			for b := offset; b < len(raw); b += size {
				seen[raw[b]] = true
			}
			require.Greater(t, len(seen), 2, "byte %d of %v blocks varies", offset, typ)
			if typ == gguf.Q8_0 && offset >= 2 {
				require.False(t, seen[0x80], "-128 is no quant of a quantiser")
			}
		}
	}
}

func TestTheFileDescribesExactlyTheShapeAskedFor(t *testing.T) {
	for name, tc := range map[string]struct {
		shape synth.Shape
		want  engine.Uniform
	}{
		"defaults": {small(), engine.Uniform{Layers: 2, Hidden: 256, Heads: 4, KVHeads: 2, HeadDim: 64, FFN: 512, Vocab: 300,
			Context: 16384, RopeDims: 64, RopeBase: 10000, RopeScale: 1, NormEps: 1e-5}},
		"everything a llama may have": {synth.Shape{Architecture: "llama", Desc: engine.Uniform{Layers: 1, Hidden: 96, Heads: 6, KVHeads: 3, HeadDim: 10,
			FFN: 33, Vocab: 7, Context: 99, RopeDims: 8, RopeBase: 5e5, RopeScale: 2, NormEps: 1e-6, AttnScale: 0.5, QKVBias: true, OBias: true, TiedHead: true, RopeFactors: true}},
			engine.Uniform{Layers: 1, Hidden: 96, Heads: 6, KVHeads: 3, HeadDim: 10, FFN: 33, Vocab: 7, Context: 99, RopeDims: 8, RopeBase: 5e5, RopeScale: 2,
				NormEps: 1e-6, AttnScale: 0.5, QKVBias: true, OBias: true, TiedHead: true, RopeFactors: true}},
		"qwen2": {synth.Shape{Architecture: "qwen2", Desc: engine.Uniform{Layers: 1, Hidden: 64, Heads: 2, FFN: 32, Vocab: 9}},
			engine.Uniform{Layers: 1, Hidden: 64, Heads: 2, KVHeads: 2, HeadDim: 32, FFN: 32, Vocab: 9, Context: 16384, RopeDims: 32, RopeStyle: engine.RopeNeox,
				RopeBase: 10000, RopeScale: 1, NormEps: 1e-5, QKVBias: true}},
		"qwen3": {synth.Shape{Architecture: "qwen3", Desc: engine.Uniform{Layers: 1, Hidden: 64, Heads: 2, HeadDim: 48, FFN: 32, Vocab: 9}},
			engine.Uniform{Layers: 1, Hidden: 64, Heads: 2, KVHeads: 2, HeadDim: 48, FFN: 32, Vocab: 9, Context: 16384, RopeDims: 48, RopeStyle: engine.RopeNeox,
				RopeBase: 10000, RopeScale: 1, NormEps: 1e-5, QKNorm: true}},
	} {
		t.Run(name, func(t *testing.T) {
			f := write(t, tc.shape, gguf.Q4K, 1)
			m, err := arch.Parse(f)
			require.NoError(t, err)
			require.Equal(t, tc.want.Model(), m.Desc)
			var all uint64
			for _, tensor := range f.Tensors() {
				all += tensor.Size
			}
			size, err := synth.TensorBytes(tc.shape, synth.Only(gguf.Q4K))
			require.NoError(t, err)
			require.Equal(t, all, size)
		})
	}
}

func TestRowsThatDoNotFitATypeFallBackAsDocumented(t *testing.T) {
	shape := synth.Shape{Architecture: "llama", Desc: engine.Uniform{Layers: 1, Hidden: 256, Heads: 4, HeadDim: 24, FFN: 100, Vocab: 9}}
	for typ, want := range map[gguf.Type]struct{ rows256, rows96, rows100 gguf.Type }{
		gguf.Q4K: {gguf.Q4K, gguf.Q5_0, gguf.F16}, gguf.Q5K: {gguf.Q5K, gguf.Q5_1, gguf.F16}, gguf.Q6K: {gguf.Q6K, gguf.Q8_0, gguf.F16},
		gguf.Q2K: {gguf.Q2K, gguf.IQ4NL, gguf.F16}, gguf.Q3K: {gguf.Q3K, gguf.IQ4NL, gguf.F16}, gguf.IQ4XS: {gguf.IQ4XS, gguf.IQ4NL, gguf.F16},
		gguf.IQ2XXS: {gguf.IQ2XXS, gguf.IQ4NL, gguf.F16}, gguf.IQ3S: {gguf.IQ3S, gguf.IQ4NL, gguf.F16}, gguf.MXFP4: {gguf.MXFP4, gguf.MXFP4, gguf.F16},
		gguf.NVFP4: {gguf.NVFP4, gguf.MXFP4, gguf.F16},
		gguf.Q8_0:  {gguf.Q8_0, gguf.Q8_0, gguf.F16}, gguf.IQ4NL: {gguf.IQ4NL, gguf.IQ4NL, gguf.F16}, gguf.BF16: {gguf.BF16, gguf.BF16, gguf.BF16},
	} {
		f := write(t, shape, typ, 1)
		for name, w := range map[string]gguf.Type{"blk.0.attn_q.weight": want.rows256, "blk.0.attn_output.weight": want.rows96, "blk.0.ffn_down.weight": want.rows100} {
			tensor, ok := f.Tensor(name)
			require.True(t, ok)
			require.Equal(t, w, tensor.Type, "%v: %s", typ, name)
		}
	}
}

func TestTheSeedDecidesEveryByte(t *testing.T) {
	for _, typ := range weightTypes {
		var one, again, other bytes.Buffer
		require.NoError(t, synth.Write(&one, small(), synth.Only(typ), 1))
		require.NoError(t, synth.Write(&again, small(), synth.Only(typ), 1))
		require.NoError(t, synth.Write(&other, small(), synth.Only(typ), 2))
		require.True(t, bytes.Equal(one.Bytes(), again.Bytes()), "%v", typ)
		a, b := write(t, small(), typ, 1), write(t, small(), typ, 2)
		x, _ := a.Tensor("blk.1.ffn_up.weight")
		y, _ := b.Tensor("blk.1.ffn_up.weight")
		z, _ := a.Tensor("blk.1.ffn_gate.weight")
		require.NotEqual(t, a.Bytes(x), b.Bytes(y), "%v: seeds differ", typ)
		require.NotEqual(t, a.Bytes(x), a.Bytes(z), "%v: tensors differ", typ)
	}
}

func TestNormsScatterAroundOneAndRopeFactorsGrow(t *testing.T) {
	shape := small()
	shape.Desc.RopeFactors, shape.Desc.RopeBase = true, 500000
	f := write(t, shape, gguf.F16, 1)
	norm, _ := f.Tensor("blk.0.ffn_norm.weight")
	for _, v := range weights(t, f, norm) {
		require.InDelta(t, 1, v, 0.25)
	}
	freqs, _ := f.Tensor("rope_freqs.weight")
	factors := weights(t, f, freqs)
	require.Len(t, factors, 32)
	require.EqualValues(t, 1, factors[0])
	require.EqualValues(t, 8, factors[31])
	for i := 1; i < len(factors); i++ {
		require.GreaterOrEqual(t, factors[i], factors[i-1])
	}
}

func TestMixturesAreDrawnByTheirRoles(t *testing.T) {
	// Stacks are scaled by the row length, a router by softmax has four times the usual logits, and
	// a choice bias is from 0 to 0.1. Of a mix, the router is F32, and the down matrices of the
	// picked layers get more bits.
	spread := func(name, tensor string) (float64, []uint64) {
		shape, ok := synth.Small(name)
		require.True(t, ok)
		f := write(t, shape, gguf.F32, 1)
		at, ok := f.Tensor(tensor)
		require.True(t, ok, tensor)
		var squares float64
		values := weights(t, f, at)
		for _, v := range values {
			squares += v * v
		}
		return math.Sqrt(squares / float64(len(values)) * float64(at.Dims[0])), at.Dims
	}
	for _, tc := range []struct {
		name, tensor string
		want         float64
		dims         []uint64
	}{
		{"qwen3moe", "blk.1.ffn_gate_exps.weight", 1, []uint64{48, 24, 16}},
		{"qwen3moe", "blk.1.ffn_down_exps.weight", 1, []uint64{24, 48, 16}},
		{"qwen3moe", "blk.1.ffn_gate_inp.weight", 4, []uint64{48, 16}},
		{"minimax-m2", "blk.1.ffn_gate_inp.weight", 1, []uint64{48, 10}},
		{"glm4moe", "blk.0.ffn_down.weight", 1, []uint64{80, 48}},
		{"qwen2moe", "blk.2.ffn_up_shexp.weight", 1, []uint64{48, 28}},
		{"gemma4-experts", "blk.2.ffn_gate_up_exps.weight", 1, []uint64{48, 40, 12}},
		{"gemma4-experts", "blk.2.ffn_gate.weight", 1, []uint64{48, 80}},
	} {
		got, dims := spread(tc.name, tc.tensor)
		require.InDelta(t, 1, got/tc.want, 0.08, "%s of %s", tc.tensor, tc.name)
		require.Equal(t, tc.dims, dims)
	}
	shape, _ := synth.Small("glm4moe")
	f := write(t, shape, gguf.F32, 1)
	bias, _ := f.Tensor("blk.3.exp_probs_b.bias")
	values := weights(t, f, bias)
	require.Len(t, values, 12)
	for _, v := range values {
		require.GreaterOrEqual(t, v, 0.0)
		require.Less(t, v, 0.1)
	}
	shape, _ = synth.Small("gpt-oss")
	f = write(t, shape, gguf.F32, 1)
	for name, want := range map[string]struct {
		dims []uint64
		most float64 // of the magnitudes
	}{
		"blk.0.attn_sinks.weight": {[]uint64{4}, 2}, "blk.0.ffn_gate_inp.bias": {[]uint64{8}, 2},
		"blk.0.ffn_gate_exps.bias": {[]uint64{32, 8}, 8}, "blk.0.ffn_up_exps.bias": {[]uint64{32, 8}, 8},
		"blk.0.ffn_down_exps.bias": {[]uint64{96, 8}, 0.25},
	} {
		at, ok := f.Tensor(name)
		require.True(t, ok, name)
		require.Equal(t, want.dims, at.Dims, name)
		values, distinct, most := weights(t, f, at), map[float64]bool{}, 0.0
		for _, v := range values {
			distinct[v], most = true, max(most, math.Abs(v))
		}
		require.Len(t, distinct, len(values), "%s: each expert has biases of its own", name)
		require.LessOrEqual(t, most, want.most, name)
		require.Greater(t, most, want.most/4, name)
	}
	shape, _ = synth.Small("olmoe")
	var mixed bytes.Buffer
	require.NoError(t, synth.Write(&mixed, shape, synth.Q4KM, 1))
	f, err := gguf.Parse(mixed.Bytes())
	require.NoError(t, err)
	for tensor, want := range map[string]gguf.Type{
		"blk.0.ffn_gate_inp.weight": gguf.F32, "blk.0.ffn_up_exps.weight": gguf.Q5_0,
		"blk.0.attn_v.weight": gguf.Q5_0, "blk.2.attn_v.weight": gguf.Q8_0,
		"blk.2.ffn_down_exps.weight": gguf.F16, // rows of 40
	} {
		at, ok := f.Tensor(tensor)
		require.True(t, ok, tensor)
		require.Equal(t, want, at.Type, tensor)
	}
}

func TestNamedShapesMatchTheirModels(t *testing.T) {
	want := map[string]uint64{"llama-0.1b": 134105856, "llama-1b": 1235814432, "qwen2-1.5b": 1543714304, "llama-8b": 8030261312, "qwen3-8b": 8190735360,
		"llama-70b": 70553706560, "gemma3-1b": 999885952, "gemma3-12b": 11766034176, "phi3-mini": 3821079552, "phi4-14b": 14659507200, "mistral-small-24b": 23572403200,
		"gemma4-31b": 30697345596, "gemma4-26b-a4b": 25233142046, "gpt-oss-20b": 20914757184, "gpt-oss-120b": 116829156672,
		"olmoe-1b-7b": 6919161856, "qwen3-30b-a3b": 30532122624,
		"deepseek-v2-lite": 15706484224, "glm-4.7-flash": 29943393920, // without its layer that predicts further tokens
		"lfm2-1.2b": 1170340608, "qwen3-next-80b-a3b": 79674391296, "qwen3.5-35b-a3b": 34660610688,
		"qwen3.5-27b": 26895998464, "qwen3.5-0.8b": 752393024}
	require.Len(t, synth.Names(), len(want))
	for _, name := range synth.Names() {
		shape, ok := synth.Lookup(name)
		require.True(t, ok)
		size, err := synth.TensorBytes(shape, synth.Only(gguf.F32))
		require.NoError(t, err)
		require.Equal(t, want[name], size/4, name)
		require.True(t, shape.Desc.Context == 0 || shape.Desc.Context >= 16384)
	}
	_, ok := synth.Lookup("llama-9000b")
	require.False(t, ok)
}

func TestSmallModelsAreWhatTheirArchitecturesRead(t *testing.T) {
	windows := map[string]bool{"mistral": true, "phi3-window": true, "olmo3": true, "olmo2": true, "gemma4-dense": true, "mixtral": false}
	for _, name := range synth.SmallNames() {
		shape, ok := synth.Small(name)
		require.True(t, ok)
		m, err := arch.Parse(write(t, shape, gguf.F32, 1))
		require.NoError(t, err, name)
		if want, told := windows[name]; told {
			require.Equal(t, want, m.Desc.Layers[0].Mixer.Window == 24, name)
		}
	}
	require.Subset(t, synth.SmallNames(), arch.Architectures())
	plain, _ := synth.Small("olmo2-plain")
	m, err := arch.Parse(write(t, plain, gguf.F32, 1))
	require.NoError(t, err)
	require.Zero(t, m.Desc.Layers[0].Mixer.Window)
	require.Len(t, m.Desc.Ropes, 1)
	_, ok := synth.Small("mamba")
	require.False(t, ok)
}

func TestImpossibleShapesAreRefused(t *testing.T) {
	with := func(change func(s *synth.Shape)) synth.Shape { s := small(); change(&s); return s }
	for name, tc := range map[string]struct {
		shape synth.Shape
		typ   gguf.Type
		want  string
	}{
		"no layers":               {with(func(s *synth.Shape) { s.Desc.Layers = 0 }), gguf.F16, "layers is 0"},
		"no vocabulary":           {with(func(s *synth.Shape) { s.Desc.Vocab = -1 }), gguf.F16, "vocab is -1"},
		"heads that do not share": {with(func(s *synth.Shape) { s.Desc.KVHeads = 3 }), gguf.F16, "4 heads do not share 3"},
		"a width not divisible":   {with(func(s *synth.Shape) { s.Desc.Heads, s.Desc.KVHeads = 7, 7 }), gguf.F16, "not divisible by 7"},
		"rope beyond the head":    {with(func(s *synth.Shape) { s.Desc.RopeDims = 66 }), gguf.F16, "rope over 66 of 64"},
		"another architecture":    {with(func(s *synth.Shape) { s.Architecture = "gpt2" }), gguf.F16, `"gpt2"`},
		"head norms in llama":     {with(func(s *synth.Shape) { s.Desc.QKNorm = true }), gguf.F16, "head norms in llama"},
		"a type without weights":  {small(), gguf.TQ1_0, "no weights of type TQ1_0"},
	} {
		t.Run(name, func(t *testing.T) {
			err := synth.Write(io.Discard, tc.shape, synth.Only(tc.typ), 1)
			require.ErrorIs(t, err, synth.ErrShape)
			require.ErrorContains(t, err, tc.want)
			_, err = synth.TensorBytes(tc.shape, synth.Only(tc.typ))
			require.ErrorIs(t, err, synth.ErrShape)
		})
	}
}

type failing struct{}

var errFull = errors.New("disk full")

func (failing) Write([]byte) (int, error) { return 0, errFull }

func TestAFullDiskIsReportedWithTheTensor(t *testing.T) {
	err := synth.Write(failing{}, small(), synth.Only(gguf.F32), 1)
	require.ErrorIs(t, err, errFull)
	require.ErrorContains(t, err, "tensor token_embd.weight")
}

// BenchmarkWrite writes a model of 0.1 b to nowhere, on one core.
func BenchmarkWrite(b *testing.B) {
	shape, _ := synth.Lookup("llama-0.1b")
	for _, typ := range weightTypes {
		b.Run(typ.String(), func(b *testing.B) {
			size, err := synth.TensorBytes(shape, synth.Only(typ))
			require.NoError(b, err)
			b.SetBytes(int64(size))
			for b.Loop() {
				require.NoError(b, synth.Write(io.Discard, shape, synth.Only(typ), 1))
			}
		})
	}
}
