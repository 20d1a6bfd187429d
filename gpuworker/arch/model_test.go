package arch_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/gguf"
)

// model is a small model file that tests spoil: width 96, 2 layers, 4 heads of 24, 2 key-value
// heads, vocabulary 50.
type model struct {
	meta    map[string]any
	tensors []tensor
	fill    byte // of every byte of every tensor; 0x3F makes each F32 0.747
}

type tensor struct {
	name string
	typ  gguf.Type
	dims []uint64
}

func (m *model) set(key string, value any) *model { m.meta[key] = value; return m }

func (m *model) unset(key string) *model { delete(m.meta, key); return m }

func (m *model) filled(b byte) *model { m.fill = b; return m }

func (m *model) add(name string, typ gguf.Type, dims ...uint64) *model {
	m.tensors = append(m.tensors, tensor{name, typ, dims})
	return m
}

func (m *model) remove(name string) *model {
	m.tensors = slices.DeleteFunc(m.tensors, func(t tensor) bool { return t.name == name })
	return m
}

func (m *model) replace(name string, typ gguf.Type, dims ...uint64) *model {
	return m.remove(name).add(name, typ, dims...)
}

func (m *model) parse(t *testing.T) (*arch.Model, error) {
	t.Helper()
	var buf bytes.Buffer
	w := gguf.NewWriter(&buf)
	for _, key := range slices.Sorted(maps.Keys(m.meta)) {
		w.Set(key, m.meta[key])
	}
	var size uint64
	for _, x := range m.tensors {
		w.Tensor(x.name, x.typ, x.dims...)
		n := uint64(1)
		for _, d := range x.dims {
			n *= d
		}
		size += x.typ.RowBytes(n)
	}
	require.NoError(t, w.Begin())
	_, err := w.Write(bytes.Repeat([]byte{m.fill}, int(size)))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	f, err := gguf.Parse(buf.Bytes())
	require.NoError(t, err)
	return arch.Parse(f)
}

// small returns the model of an architecture with a head dimension of headDim.
func small(architecture string, headDim uint64) *model {
	m := &model{meta: map[string]any{"general.architecture": architecture, "general.name": "small"}, fill: 0x3F}
	for key, value := range map[string]any{
		"block_count": uint32(2), "embedding_length": uint32(96), "feed_forward_length": uint32(160), "context_length": uint32(64),
		"attention.head_count": uint32(4), "attention.head_count_kv": uint32(2), "attention.layer_norm_rms_epsilon": float32(1e-5),
	} {
		m.set(architecture+"."+key, value)
	}
	m.add("token_embd.weight", gguf.Q8_0, 96, 50).add("output_norm.weight", gguf.F32, 96).add("output.weight", gguf.F16, 96, 50)
	for i := range 2 {
		blk := func(suffix string, typ gguf.Type, dims ...uint64) {
			m.add(fmt.Sprintf("blk.%d.%s", i, suffix), typ, dims...)
		}
		blk("attn_norm.weight", gguf.F32, 96)
		blk("attn_q.weight", gguf.Q8_0, 96, 4*headDim)
		blk("attn_k.weight", gguf.Q8_0, 96, 2*headDim)
		blk("attn_v.weight", gguf.Q5_1, 96, 2*headDim)
		blk("attn_output.weight", gguf.Q8_0, 4*headDim, 96)
		blk("ffn_norm.weight", gguf.F32, 96)
		blk("ffn_gate.weight", gguf.Q8_0, 96, 160)
		blk("ffn_up.weight", gguf.Q8_0, 96, 160)
		blk("ffn_down.weight", gguf.IQ4NL, 160, 96)
	}
	return m
}

func llama() *model { return small("llama", 24) }

// biased adds biases to Q, K and V.
func biased(m *model) *model {
	for i := range 2 {
		m.add(fmt.Sprintf("blk.%d.attn_q.bias", i), gguf.F32, 96)
		m.add(fmt.Sprintf("blk.%d.attn_k.bias", i), gguf.F32, 48)
		m.add(fmt.Sprintf("blk.%d.attn_v.bias", i), gguf.F32, 48)
	}
	return m
}

func qwen3() *model {
	m := small("qwen3", 32).set("qwen3.attention.key_length", uint32(32)).set("qwen3.attention.value_length", uint32(32)).
		set("qwen3.rope.freq_base", float32(1e6))
	for i := range 2 {
		m.add(fmt.Sprintf("blk.%d.attn_q_norm.weight", i), gguf.F32, 32)
		m.add(fmt.Sprintf("blk.%d.attn_k_norm.weight", i), gguf.F32, 32)
	}
	return m
}

func TestEveryArchitectureGivesItsShape(t *testing.T) {
	base := engine.Uniform{Layers: 2, Hidden: 96, Heads: 4, KVHeads: 2, HeadDim: 24, FFN: 160, Vocab: 50, Context: 64,
		RopeDims: 24, RopeBase: 10000, RopeScale: 1, NormEps: 1e-5}
	with := func(change func(d *engine.Uniform)) engine.Uniform { d := base; change(&d); return d }
	for name, tc := range map[string]struct {
		model *model
		want  engine.Uniform
	}{
		"llama": {llama(), base},
		"llama without key-value heads of its own": {llama().unset("llama.attention.head_count_kv").
			replace("blk.0.attn_k.weight", gguf.F16, 96, 96).replace("blk.0.attn_v.weight", gguf.F16, 96, 96).
			replace("blk.1.attn_k.weight", gguf.F16, 96, 96).replace("blk.1.attn_v.weight", gguf.F16, 96, 96),
			with(func(d *engine.Uniform) { d.KVHeads = 4 })},
		"llama with a tied head":     {llama().remove("output.weight"), with(func(d *engine.Uniform) { d.TiedHead = true })},
		"llama with linear scaling":  {llama().set("llama.rope.scaling.type", "linear").set("llama.rope.scaling.factor", float32(4)), with(func(d *engine.Uniform) { d.RopeScale = 4 })},
		"a factor without a type":    {llama().set("llama.rope.scaling.factor", float32(2)), with(func(d *engine.Uniform) { d.RopeScale = 2 })},
		"the old name of the factor": {llama().set("llama.rope.scale_linear", float32(8)), with(func(d *engine.Uniform) { d.RopeScale = 8 })},
		"scaling none":               {llama().set("llama.rope.scaling.type", "none").set("llama.rope.scaling.factor", float32(2)), base},
		"rope on half of a head":     {llama().set("llama.rope.dimension_count", uint32(12)), with(func(d *engine.Uniform) { d.RopeDims = 12 })},
		"an attention scale":         {llama().set("llama.attention.scale", float32(0.125)), with(func(d *engine.Uniform) { d.AttnScale = 0.125 })},
		"heads by layer, all equal":  {llama().set("llama.attention.head_count_kv", []int32{2, 2}), base},
		"a vocabulary size":          {llama().set("llama.vocab_size", uint32(50)), base},
		"a window over the context":  {llama().set("llama.attention.sliding_window", uint32(64)), base},
		"no experts":                 {llama().set("llama.expert_count", uint32(0)), base},
		"a tensor of old files":      {llama().add("blk.0.attn_rot_embd.weight", gguf.F32, 12), base},
		"llama with biases":          {biased(llama()), with(func(d *engine.Uniform) { d.QKVBias = true })},
		"llama with an output bias": {llama().add("blk.0.attn_output.bias", gguf.F32, 96).add("blk.1.attn_output.bias", gguf.F32, 96),
			with(func(d *engine.Uniform) { d.OBias = true })},
		"qwen2": {biased(small("qwen2", 24)), with(func(d *engine.Uniform) { d.QKVBias, d.RopeStyle = true, engine.RopeNeox })},
		"qwen3": {qwen3(), with(func(d *engine.Uniform) {
			d.HeadDim, d.RopeDims, d.RopeStyle, d.QKNorm, d.RopeBase = 32, 32, engine.RopeNeox, true, 1e6
		})},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := tc.model.parse(t)
			require.NoError(t, err)
			require.Equal(t, tc.want.Model(), m.Desc)
		})
	}
}

func TestRopeFactorsArePartOfTheDescription(t *testing.T) {
	m, err := llama().add("rope_freqs.weight", gguf.F32, 12).parse(t)
	require.NoError(t, err)
	require.Equal(t, slices.Repeat([]float64{float64(math.Float32frombits(0x3F3F3F3F))}, 12), m.Desc.Ropes[0].Divisors)
	require.Len(t, m.Bindings, 3+2*9, "an engine gets them with the description")
}

func TestEveryTensorGetsItsRoleInFileOrder(t *testing.T) {
	m, err := llama().parse(t)
	require.NoError(t, err)
	require.Equal(t, "llama", m.Architecture)
	require.Equal(t, "small", m.Name)
	require.Len(t, m.Bindings, 3+2*9)
	var last, parameters, size uint64
	seen := map[string]bool{}
	for i, b := range m.Bindings {
		require.True(t, i == 0 || b.Tensor.Offset > last, "file order")
		last, parameters, size = b.Tensor.Offset, parameters+b.Tensor.Elements(), size+b.Tensor.Size
		seen[fmt.Sprint(b.Desc.Role, b.Desc.Layer)] = true
		require.EqualValues(t, b.Tensor.Type, b.Desc.Type)
	}
	require.Len(t, seen, len(m.Bindings), "no role twice")
	require.Equal(t, parameters, m.Parameters)
	require.Equal(t, size, m.Bytes)
	require.EqualValues(t, 2*50*96+96+2*(2*96+2*96*96+2*96*48+3*96*160), m.Parameters)

	down := m.Bindings[len(m.Bindings)-1]
	require.Equal(t, "blk.1.ffn_down.weight", down.Tensor.Name)
	require.Equal(t, engine.TensorDesc{Role: engine.RoleDown, Layer: 1, Type: engine.IQ4NL, Dims: []int64{160, 96}}, down.Desc)
	require.Equal(t, engine.TensorDesc{Role: engine.RoleEmbedding, Layer: -1, Type: engine.Q8_0, Dims: []int64{96, 50}}, m.Bindings[0].Desc)
}

func TestQuantizationLabel(t *testing.T) {
	// The quantisation is the file's own label or the commonest type.
	for name, tc := range map[string]struct {
		model *model
		want  string
	}{
		"no file type":                  {llama(), "Q8_0"},
		"a mixture":                     {llama().set("general.file_type", uint32(15)), "Q4_K_M"},
		"a plain type that is there":    {llama().set("general.file_type", uint32(25)), "IQ4_NL"},
		"a plain type that is not":      {llama().set("general.file_type", uint32(2)), "Q8_0"},
		"a file type nobody knows":      {llama().set("general.file_type", uint32(1024)), "Q8_0"},
		"a large embedding of F16 rows": {llama().replace("token_embd.weight", gguf.F16, 96, 5000).replace("output.weight", gguf.F16, 96, 5000), "F16"},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := tc.model.parse(t)
			require.NoError(t, err)
			require.Equal(t, tc.want, m.Quantization)
		})
	}
}

func TestUnsupportedModelsAreRefusedByName(t *testing.T) {
	// Features that are not implemented, and contradictions, are refused by name.
	for name, tc := range map[string]struct {
		model *model
		kind  error
		want  string
	}{
		"no architecture":               {llama().unset("general.architecture"), arch.ErrInvalidModel, "general.architecture is missing"},
		"an architecture in numbers":    {llama().set("general.architecture", uint32(1)), gguf.ErrValueType, "general.architecture"},
		"another architecture":          {llama().set("general.architecture", "resnet"), arch.ErrUnsupportedArch, `architecture "resnet", want one of [`},
		"a recurrent architecture":      {llama().set("general.architecture", "mamba"), arch.ErrUnsupportedArch, `architecture "mamba" needs layers with a recurrent state of another kind, which no engine computes yet: want one of [`},
		"Command R":                     {llama().set("general.architecture", "command-r"), arch.ErrUnsupportedArch, `architecture "command-r" needs layer norms, and an MLP that reads the input of attention`},
		"Command R7B":                   {llama().set("general.architecture", "cohere2"), arch.ErrUnsupportedArch, `architecture "cohere2" needs layer norms, and an MLP that reads the input of attention`},
		"experts":                       {qwen3().set("qwen3.expert_count", uint32(8)), arch.ErrUnsupportedArch, "mixture of experts (metadata qwen3.expert_count is 8)"},
		"a sliding window":              {qwen3().set("qwen3.attention.sliding_window", uint32(63)), arch.ErrUnsupportedArch, "sliding window (metadata qwen3.attention.sliding_window is 63, context 64)"},
		"windows by layer":              {qwen3().set("qwen3.attention.sliding_window", []uint32{1}), arch.ErrUnsupportedArch, "sliding window"},
		"a window in words":             {llama().set("llama.attention.sliding_window", "63"), gguf.ErrValueType, "attention.sliding_window"},
		"a window beyond every context": {llama().set("llama.attention.sliding_window", uint32(1<<21+1)), arch.ErrInvalidModel, "attention.sliding_window is 2097153, want at most 2097152"},
		"a pattern of three layers":     {llama().set("llama.attention.sliding_window", uint32(8)).set("llama.attention.sliding_window_pattern", []bool{true, false, true}), arch.ErrInvalidModel, "sliding_window_pattern has 3 values, want one for each of 2 layers"},
		"a pattern in words":            {llama().set("llama.attention.sliding_window", uint32(8)).set("llama.attention.sliding_window_pattern", []string{"a", "b"}), gguf.ErrValueType, "sliding_window_pattern"},
		"a logit soft cap":              {llama().set("llama.final_logit_softcapping", float32(30)), arch.ErrUnsupportedArch, "soft cap"},
		"attention to the future":       {llama().set("llama.attention.causal", false), arch.ErrUnsupportedArch, "not causal"},
		"a residual scale":              {llama().set("llama.residual_scale", float32(0.2)), arch.ErrUnsupportedArch, "residual scale"},
		"experts in words":              {llama().set("llama.expert_count", "8"), gguf.ErrValueType, "expert_count"},
		"rope in sections":              {llama().set("llama.rope.dimension_sections", []int32{1, 2}), arch.ErrUnsupportedArch, "rope in sections"},
		"heads of another layer":        {llama().set("llama.attention.head_count_kv", []int32{2, 4}), arch.ErrInvalidModel, "tensor blk.1.attn_k.weight has dimensions [96 48], want [96 96]"},
		"heads of three layers":         {llama().set("llama.attention.head_count_kv", []int32{2, 2, 2}), arch.ErrInvalidModel, "head_count_kv has 3 values, want one for each of 2 layers"},
		"a layer without heads":         {llama().set("llama.attention.head_count_kv", []int32{2, 0}), arch.ErrInvalidModel, "head_count_kv has 0 for layer 1, want 1 to"},
		"widths in words":               {llama().set("llama.feed_forward_length", []string{"1", "2"}), gguf.ErrValueType, "feed_forward_length"},
		"layers as a list":              {llama().set("llama.block_count", []int32{2, 2}), gguf.ErrValueType, "block_count"},
		"values apart from keys":        {llama().set("llama.attention.value_length", uint32(12)), arch.ErrUnsupportedArch, "value length 12"},
		"no layer count":                {llama().unset("llama.block_count"), arch.ErrInvalidModel, "llama.block_count is missing"},
		"a context beyond every engine": {llama().set("llama.context_length", uint32(1<<21+1)), arch.ErrInvalidModel, "context_length is 2097153"},
		"no width":                      {llama().unset("llama.embedding_length"), arch.ErrInvalidModel, "embedding_length is missing"},
		"no norm epsilon":               {llama().unset("llama.attention.layer_norm_rms_epsilon"), arch.ErrInvalidModel, "layer_norm_rms_epsilon is missing"},
		"an epsilon of NaN":             {llama().set("llama.attention.layer_norm_rms_epsilon", float32(math.NaN())), arch.ErrInvalidModel, "finite number above 0"},
		"a rope base of infinity":       {llama().set("llama.rope.freq_base", float32(math.Inf(1))), arch.ErrInvalidModel, "finite number above 0"},
		"a rope base of zero":           {llama().set("llama.rope.freq_base", float32(0)), arch.ErrInvalidModel, "rope.freq_base is 0, want a finite number above 0"},
		"a negative rope base":          {llama().set("llama.rope.freq_base", float32(-1e4)), arch.ErrInvalidModel, "rope.freq_base is -10000, want a finite number above 0"},
		"a rope base of NaN":            {llama().set("llama.rope.freq_base", math.NaN()), arch.ErrInvalidModel, "rope.freq_base is NaN, want a finite number above 0"},
		"a rope base of minus infinity": {llama().set("llama.rope.freq_base", math.Inf(-1)), arch.ErrInvalidModel, "rope.freq_base is -Inf, want"},
		"a rope base beyond f32":        {llama().set("llama.rope.freq_base", 1e300), arch.ErrInvalidModel, "rope.freq_base is 1e+300, want a finite number"},
		"an extreme rope base":          {llama().set("llama.rope.freq_base", float32(3e38)), arch.ErrInvalidModel, "llama.rope.freq_base is 3e+38, want 1 to 1e+12"},
		"a rope base next to zero":      {llama().set("llama.rope.freq_base", float32(1e-38)), arch.ErrInvalidModel, "llama.rope.freq_base is 1e-38, want 1 to 1e+12"},
		"a rope base in words":          {llama().set("llama.rope.freq_base", "10000"), gguf.ErrValueType, "llama.rope.freq_base is string, want"},
		"an extreme scaling factor":     {llama().set("llama.rope.scaling.factor", float32(1e-30)), arch.ErrInvalidModel, "rope.scaling.factor is 1e-30, want 0.0001 to 10000"},
		"an extreme attention scale":    {llama().set("llama.attention.scale", float32(1e30)), arch.ErrInvalidModel, "attention.scale is 1e+30, want"},
		"rope factors of zero":          {llama().add("rope_freqs.weight", gguf.F32, 12).filled(0), arch.ErrInvalidModel, "tensor rope_freqs.weight: factor 0 is 0, want a finite number above 0"},
		"rope factors of NaN":           {llama().add("rope_freqs.weight", gguf.F32, 12).filled(0xFF), arch.ErrInvalidModel, "tensor rope_freqs.weight: factor 0 is NaN"},
		"a part of a split model":       {llama().set("split.count", uint16(3)).set("split.no", uint16(0)), arch.ErrUnsupportedArch, "part 1 of a model split into 3 files"},
		"a later part of a split model": {(&model{meta: map[string]any{"split.count": uint16(2), "split.no": uint16(1)}}).add("x", gguf.F32, 32), arch.ErrUnsupportedArch, "part 2 of a model split into 2 files"},
		"an adapter":                    {llama().set("general.type", "adapter"), arch.ErrUnsupportedArch, `general.type is "adapter"`},
		"a scaling factor of zero":      {llama().set("llama.rope.scaling.factor", float32(0)), arch.ErrInvalidModel, "rope.scaling.factor is 0"},
		"no layers":                     {llama().set("llama.block_count", uint32(0)), arch.ErrInvalidModel, "block_count is 0"},
		"2^60 layers":                   {llama().set("llama.block_count", uint64(1<<60)), arch.ErrInvalidModel, "want 1 to"},
		"a million layers":              {llama().set("llama.block_count", uint32(1e6)), arch.ErrInvalidModel, "block_count is 1000000, want 1 to 4096"},
		"a negative width":              {llama().set("llama.embedding_length", int32(-96)), gguf.ErrValueType, "embedding_length"},
		"three heads for two":           {llama().set("llama.attention.head_count", uint32(3)), arch.ErrInvalidModel, "3 heads do not share 2"},
		"heads that do not divide":      {llama().set("llama.attention.head_count", uint32(10)).set("llama.attention.head_count_kv", uint32(5)), arch.ErrInvalidModel, "96 is not divisible by 10 heads"},
		"rope on an odd part":           {llama().set("llama.rope.dimension_count", uint32(13)), arch.ErrInvalidModel, "rope.dimension_count is 13"},
		"rope beyond the head":          {llama().set("llama.rope.dimension_count", uint32(26)), arch.ErrInvalidModel, "rope.dimension_count is 26"},
		"no embedding":                  {llama().remove("token_embd.weight"), arch.ErrInvalidModel, "token_embd.weight is missing"},
		"another vocabulary size":       {llama().set("llama.vocab_size", uint32(51)), arch.ErrInvalidModel, "token_embd.weight has dimensions [96 50], want [96 51]"},
		"more tokens than rows":         {llama().set("tokenizer.ggml.tokens", make([]string, 51)), arch.ErrInvalidModel, "tokenizer has 51 tokens and the model 50"},
		"an embedding of one row":       {llama().replace("token_embd.weight", gguf.F32, 96), arch.ErrInvalidModel, "vocab_size is missing"},
		"a missing norm":                {llama().remove("output_norm.weight"), arch.ErrInvalidModel, "tensor output_norm.weight is missing"},
		"a missing matrix":              {llama().remove("blk.1.ffn_up.weight"), arch.ErrInvalidModel, "tensor blk.1.ffn_up.weight is missing"},
		"a matrix turned around":        {llama().replace("blk.1.attn_k.weight", gguf.F32, 48, 96), arch.ErrInvalidModel, "tensor blk.1.attn_k.weight has dimensions [48 96], want [96 48]"},
		"a norm in two dimensions":      {llama().replace("blk.1.ffn_norm.weight", gguf.F32, 96, 2), arch.ErrInvalidModel, "dimensions [96 2], want [96]"},
		"rope factors too many":         {llama().add("rope_freqs.weight", gguf.F32, 24), arch.ErrInvalidModel, "rope_freqs.weight has dimensions [24], want [12]"},
		"a matrix type not run":         {llama().replace("blk.1.attn_k.weight", gguf.Q8_1, 96, 48), arch.ErrUnsupportedType, "tensor blk.1.attn_k.weight is Q8_1"},
		"a norm in blocks":              {llama().replace("blk.1.ffn_norm.weight", gguf.Q8_0, 96), arch.ErrUnsupportedType, "tensor blk.1.ffn_norm.weight is Q8_0, want [F32 F16 BF16]"},
		"a vocabulary alone":            {(&model{meta: map[string]any{"general.architecture": "command-r", "tokenizer.ggml.tokens": []string{"a"}}}), arch.ErrUnsupportedArch, "the file holds a vocabulary and no weights"},
		"a pooling of no kind":          {llama().set("llama.pooling_type", uint32(5)), arch.ErrUnsupportedArch, "pooling of an unknown kind (metadata llama.pooling_type is 5)"},
		"a classifier of other labels":  {reranker("relevant", "no"), arch.ErrUnsupportedArch, "a classifier with the labels [\"relevant\" \"no\"]"},
		"a classifier of three labels":  {reranker("yes", "no", "perhaps"), arch.ErrUnsupportedArch, "a classifier with the labels"},
		"a reranker without its head":   {reranker("yes", "no").remove("cls.output.weight"), arch.ErrUnsupportedArch, "reranking without tensor cls.output.weight"},
		"a reranker's head too wide":    {reranker("yes", "no").replace("cls.output.weight", gguf.F32, 97, 2), arch.ErrInvalidModel, "cls.output.weight has dimensions [97 2], want [96 2]"},
		"a classifier of an embedder":   {reranker("yes", "no").set("qwen3.pooling_type", uint32(3)), arch.ErrUnsupportedArch, "tensor cls.output.weight has no role"},
		"rope factors of zero in F16":   {llama().add("rope_freqs.weight", gguf.F16, 12).filled(0), arch.ErrInvalidModel, "tensor rope_freqs.weight: factor 0 is 0"},
		"a tensor of no role":           {llama().add("blk.0.ffn_gate_inp.weight", gguf.F32, 96, 8), arch.ErrUnsupportedArch, "tensor blk.0.ffn_gate_inp.weight has no role"},
		"a tensor from elsewhere":       {llama().add("vision.weight", gguf.F32, 96), arch.ErrUnsupportedArch, "tensor vision.weight has no role"},
		"a layer too many":              {llama().add("blk.2.attn_norm.weight", gguf.F32, 96), arch.ErrInvalidModel, "blk.2.attn_norm.weight is of no layer from 0 to 1"},
		"a layer with zeros ahead":      {llama().add("blk.01.attn_norm.weight", gguf.F32, 96), arch.ErrInvalidModel, "blk.01.attn_norm.weight is of no layer"},
		"a bias in one layer only":      {llama().add("blk.0.attn_q.bias", gguf.F32, 96), arch.ErrInvalidModel, "tensor blk.0.attn_k.bias is missing"},
		"head norms in llama":           {llama().add("blk.0.attn_q_norm.weight", gguf.F32, 24), arch.ErrUnsupportedArch, "attn_q_norm.weight has no role"},
		"qwen2 without biases":          {small("qwen2", 24), arch.ErrInvalidModel, "bias is missing"},
		"qwen3 without a head norm":     {qwen3().remove("blk.1.attn_k_norm.weight"), arch.ErrInvalidModel, "tensor blk.1.attn_k_norm.weight is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tc.model.parse(t)
			require.ErrorIs(t, err, tc.kind)
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func TestVectorsWidenToF32(t *testing.T) {
	// Norms in F16 or BF16 go to the engine as F32: each number of 16 bits is one of 32.
	for typ, want := range map[gguf.Type]float32{gguf.F16: 1.8115234, gguf.BF16: 0.74609375} {
		m, err := llama().replace("blk.1.ffn_norm.weight", typ, 96).parse(t)
		require.NoError(t, err)
		b := m.Bindings[len(m.Bindings)-1]
		require.True(t, b.Widens())
		require.Equal(t, engine.TensorDesc{Role: engine.RoleFFNNorm, Layer: 1, Type: engine.F32, Dims: []int64{96}}, b.Desc)
		require.EqualValues(t, 4*96, b.Bytes())
		require.EqualValues(t, 2*96, b.Tensor.Size)
		wide := b.Widen([]byte{0x3F, 0x3F})
		require.Equal(t, want, math.Float32frombits(binary.LittleEndian.Uint32(wide)), "%v", typ)
		require.Len(t, wide, 4)
	}
}

func TestTrailingDimensionsOfOneAreAccepted(t *testing.T) {
	m, err := llama().replace("blk.1.ffn_norm.weight", gguf.F32, 96, 1, 1).replace("token_embd.weight", gguf.F16, 96, 50, 1, 1).
		replace("blk.1.attn_k.weight", gguf.F32, 96, 48, 1).set("llama.pooling_type", int32(-1)).parse(t)
	require.NoError(t, err)
	for _, b := range m.Bindings[len(m.Bindings)-3:] {
		require.Equal(t, b.Desc.Role.Dims(&m.Desc, b.Desc.Layer), b.Desc.Dims, "%s", b.Tensor.Name)
	}
}

func TestLongTextsOfAFileAreQuotedInPart(t *testing.T) {
	long := strings.Repeat("x", 100<<10)
	for name, m := range map[string]*model{
		"an architecture": llama().set("general.architecture", long),
		"a rope scaling":  llama().set("llama.rope.scaling.type", long),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := m.parse(t)
			require.ErrorIs(t, err, arch.ErrUnsupportedArch)
			require.ErrorContains(t, err, long[:64])
			require.Less(t, len(err.Error()), 150+len(fmt.Sprint(arch.Architectures())))
		})
	}
}
