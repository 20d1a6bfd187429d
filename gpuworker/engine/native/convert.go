package native

/*
#include "table.h"
*/
import "C"

import (
	"fmt"
	"math"
	"runtime"

	"github.com/millrace/millrace/gpuworker/engine"
)

// narrow converts to C's narrower integers and stores the first value that does not fit.
type narrow struct{ err error }

func (n *narrow) i32(what string, v int) C.int32_t {
	if (v < math.MinInt32 || v > math.MaxInt32) && n.err == nil {
		n.err = fmt.Errorf("%s %d does not fit 32 bits: %w", what, v, engine.ErrInvalid)
	}
	return C.int32_t(v)
}

func flag(b bool) C.int32_t {
	if b {
		return 1
	}
	return 0
}

// text returns the text of a fixed array of C characters, up to its first zero.
func text(s []C.char) string {
	b := make([]byte, 0, len(s))
	for _, c := range s {
		if c == 0 {
			break
		}
		b = append(b, byte(c))
	}
	return string(b)
}

func infoOf(in *C.mr_device_info, build string) engine.DeviceInfo {
	out := engine.DeviceInfo{
		Kind: text(in.kind[:]), Name: text(in.name[:]), UUID: text(in.uuid[:]), Path: text(in.path[:]),
		Numerics: text(in.numerics[:]), Build: build, OneClass: in.one_class != 0,
		ComputeMajor: int(in.compute_major), ComputeMinor: int(in.compute_minor), SMCount: int(in.sm_count),
		BytesTotal: uint64(in.bytes_total), BytesFree: uint64(in.bytes_free), BytesPooled: uint64(in.bytes_pooled),
		PoolHits: uint64(in.pool_hits), PoolMisses: uint64(in.pool_misses), LiveBuffers: uint64(in.live_buffers),
		TemperatureC: known(in.temperature_c), PowerMW: known(in.power_mw), FailedFrees: uint64(in.failed_frees),
		Errors: knownCount(in.errors), CorrectedErrors: knownCount(in.corrected_errors),
		PhysicalTotal: knownCount(in.physical_total), PhysicalFree: knownCount(in.physical_free),
		ManagementProblem: text(in.management_problem[:]), Devices: max(1, int(in.devices)),
		HiddenRows: in.hidden_rows != 0,
	}
	for i := range out.BytesUsed {
		out.BytesUsed[i] = uint64(in.bytes_used[i])
	}
	return out
}

// known returns nil for the value that means unknown.
func known(v C.int32_t) *int {
	if v == math.MinInt32 {
		return nil
	}
	n := int(v)
	return &n
}

func knownCount(v C.uint64_t) *uint64 {
	if v == math.MaxUint64 {
		return nil
	}
	n := uint64(v)
	return &n
}

// modelDesc converts a description. It pins the arrays that the result points to.
func modelDesc(d *engine.ModelDesc, pins *runtime.Pinner) (C.mr_model_desc, error) {
	var n narrow
	ropes := make([]C.mr_rope_desc, len(d.Ropes))
	for i := range d.Ropes {
		ropes[i] = n.rope(&d.Ropes[i], pins)
		if r := &d.Ropes[i]; r.Divisors != nil && len(r.Divisors) != r.Dims/2 && n.err == nil {
			n.err = fmt.Errorf("rope %d has %d divisors, want %d: %w", i, len(r.Divisors), r.Dims/2, engine.ErrInvalid)
		}
	}
	layers := make([]C.mr_layer_desc, len(d.Layers))
	for i := range d.Layers {
		layers[i] = n.layer(&d.Layers[i])
	}
	out := C.mr_model_desc{
		struct_size: C.sizeof_mr_model_desc,
		hidden:      n.i32("hidden", d.Hidden), vocab: n.i32("vocab", d.Vocab), context: n.i32("context", d.Context),
		tied_head: flag(d.TiedHead), norm_eps: C.float(d.NormEps), embedding_scale: C.float(d.EmbeddingScale),
		residual_scale: C.float(d.ResidualScale), logit_scale: C.float(d.LogitScale), logit_cap: C.float(d.LogitCap),
		layer_input_width: n.i32("layer input width", d.LayerInputWidth),
		rope_count:        n.i32("ropes", len(ropes)), layer_count: n.i32("layers", len(layers)),
		rope_stride: C.sizeof_mr_rope_desc, layer_stride: C.sizeof_mr_layer_desc,
	}
	if len(ropes) > 0 {
		pins.Pin(&ropes[0])
		out.ropes = &ropes[0]
	}
	if len(layers) > 0 {
		pins.Pin(&layers[0])
		out.layers = &layers[0]
	}
	return out, n.err
}

func (n *narrow) rope(r *engine.Rope, pins *runtime.Pinner) C.mr_rope_desc {
	out := C.mr_rope_desc{
		struct_size: C.sizeof_mr_rope_desc, dims: n.i32("rope dims", r.Dims), style: C.int32_t(r.Style),
		base: C.float(r.Base), scale: C.float(r.Scale), magnitude: C.float(r.Magnitude),
	}
	if len(r.Divisors) > 0 {
		pins.Pin(&r.Divisors[0])
		out.divisors = (*C.double)(&r.Divisors[0])
	}
	return out
}

func (n *narrow) layer(l *engine.Layer) C.mr_layer_desc {
	m := &l.Mixer
	return C.mr_layer_desc{
		struct_size: C.sizeof_mr_layer_desc,
		mixer: C.mr_mixer_desc{
			kind: C.int32_t(m.Kind), flags: mixerFlags(m),
			heads: n.i32("heads", m.Heads), kv_heads: n.i32("kv heads", m.KVHeads),
			key_dim: n.i32("key dim", m.KeyDim), value_dim: n.i32("value dim", m.ValueDim),
			rope: n.i32("rope", m.Rope), window: n.i32("window", m.Window), scale: C.float(m.Scale), score_cap: C.float(m.ScoreCap),
			kv_layer:          n.i32("kv layer", m.KVLayer),
			temperature_scale: C.float(m.TemperatureScale), temperature_length: n.i32("temperature length", m.TemperatureLength),
			conv: n.i32("taps", m.Conv), latent: n.i32("latent", m.Latent), query_latent: n.i32("latent of queries", m.QueryLatent),
		},
		mlp: C.mr_mlp_desc{
			kind: C.int32_t(l.MLP.Kind), flags: mlpFlags(&l.MLP), activation: C.int32_t(l.MLP.Activation), width: n.i32("ffn", l.MLP.Width),
		},
		output_scale: flag(l.OutputScale),
		experts:      n.experts(&l.MLP.Experts),
	}
}

func (n *narrow) experts(e *engine.Experts) C.mr_experts_desc {
	return C.mr_experts_desc{
		flags: flags(map[C.uint32_t]bool{
			C.MR_EXPERTS_CHOICE_BIAS: e.ChoiceBias, C.MR_EXPERTS_RENORM: e.Renorm,
			C.MR_EXPERTS_GROUP_BEST_TWO: e.GroupBestTwo, C.MR_EXPERTS_SHARED_GATE: e.SharedGate,
			C.MR_EXPERTS_ROUTER_BIAS: e.RouterBias, C.MR_EXPERTS_BIAS: e.Bias, C.MR_EXPERTS_SCALES: e.Scales, C.MR_EXPERTS_APART: e.Apart,
		}),
		count: n.i32("experts", e.Count), used: n.i32("experts used", e.Used), gating: C.int32_t(e.Gating),
		groups: n.i32("groups of experts", e.Groups), groups_used: n.i32("groups used", e.GroupsUsed),
		weight_scale: C.float(e.WeightScale), shared_width: n.i32("shared ffn", e.SharedWidth),
	}
}

func mixerFlags(m *engine.Mixer) C.uint32_t {
	return flags(map[C.uint32_t]bool{
		C.MR_MIX_QKV_BIAS: m.QKVBias, C.MR_MIX_OUT_BIAS: m.OutBias, C.MR_MIX_QK_NORM: m.QKNorm, C.MR_MIX_QK_ROW_NORM: m.QKRowNorm,
		C.MR_MIX_V_NORM: m.VNorm, C.MR_MIX_VALUE_IS_KEY: m.ValueIsKey, C.MR_MIX_NO_NORM: m.NoNorm, C.MR_MIX_END_NORM: m.EndNorm,
		C.MR_MIX_BIDIRECTIONAL: m.Bidirectional,
		C.MR_MIX_SINKS:         m.Sinks, C.MR_MIX_OUT_GATE: m.OutGate, C.MR_MIX_TILED_HEADS: m.TiledHeads,
	})
}

func mlpFlags(m *engine.MLP) C.uint32_t {
	return flags(map[C.uint32_t]bool{C.MR_MLP_NO_NORM: m.NoNorm, C.MR_MLP_END_NORM: m.EndNorm})
}

func flags(set map[C.uint32_t]bool) C.uint32_t {
	var out C.uint32_t
	for bit, is := range set {
		if is {
			out |= bit
		}
	}
	return out
}

func tensorDesc(d engine.TensorDesc) (C.mr_tensor_desc, error) {
	var n narrow
	out := C.mr_tensor_desc{
		struct_size: C.sizeof_mr_tensor_desc,
		role:        C.int32_t(d.Role), layer: n.i32("layer", d.Layer), _type: C.int32_t(d.Type),
		ndims: n.i32("dims", len(d.Dims)),
	}
	if len(d.Dims) < 1 || len(d.Dims) > 3 {
		return out, fmt.Errorf("tensor has %d dims, want 1 to 3: %w", len(d.Dims), engine.ErrInvalid)
	}
	for i, v := range d.Dims {
		out.dims[i] = C.int64_t(v)
	}
	return out, n.err
}

func runnerConfig(c engine.RunnerConfig) (C.mr_runner_config, error) {
	var n narrow
	out := C.mr_runner_config{
		struct_size: C.sizeof_mr_runner_config,
		kv_blocks:   n.i32("kv blocks", c.KVBlocks), block_size: n.i32("block size", c.BlockSize),
		max_sequences:      n.i32("max sequences", c.MaxSequences),
		max_batched_tokens: n.i32("max batched tokens", c.MaxBatchedTokens),
		max_sample_rows:    n.i32("max sample rows", c.MaxSampleRows), max_score_rows: n.i32("max score rows", c.MaxScoreRows),
		max_top_n: n.i32("max top n", c.MaxTopN), kv_type: C.int32_t(c.KVType), act_type: C.int32_t(c.ActType),
		host_blocks: n.i32("host blocks", c.HostBlocks), max_hidden_rows: n.i32("max hidden rows", c.MaxHiddenRows),
		saved_states: n.i32("saved states", c.SavedStates), host_states: n.i32("host states", c.HostStates),
		window_blocks: n.i32("window blocks", c.WindowBlocks), host_window_blocks: n.i32("host window blocks", c.HostWindowBlocks),
	}
	return out, n.err
}
