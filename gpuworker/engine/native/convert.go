package native

/*
#include "table.h"
*/
import "C"

import (
	"fmt"
	"math"

	"github.com/millrace/millrace/gpuworker/engine"
)

// narrow converts to C's narrower integers and remembers the first value that does not fit.
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

// text is a fixed array of C characters that ends at its first zero.
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
	}
	for i := range out.BytesUsed {
		out.BytesUsed[i] = uint64(in.bytes_used[i])
	}
	return out
}

// known is nil for the value that means unknown.
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

func modelDesc(d engine.ModelDesc) (C.mr_model_desc, error) {
	var n narrow
	out := C.mr_model_desc{
		struct_size: C.sizeof_mr_model_desc,
		layers:      n.i32("layers", d.Layers), hidden: n.i32("hidden", d.Hidden), heads: n.i32("heads", d.Heads),
		kv_heads: n.i32("kv heads", d.KVHeads), head_dim: n.i32("head dim", d.HeadDim), ffn: n.i32("ffn", d.FFN),
		vocab: n.i32("vocab", d.Vocab), context: n.i32("context", d.Context), rope_dims: n.i32("rope dims", d.RopeDims),
		rope_style: C.int32_t(d.RopeStyle), rope_base: C.float(d.RopeBase), rope_scale: C.float(d.RopeScale),
		norm_eps: C.float(d.NormEps), attn_scale: C.float(d.AttnScale),
		qkv_bias: flag(d.QKVBias), o_bias: flag(d.OBias), qk_norm: flag(d.QKNorm), tied_head: flag(d.TiedHead),
		rope_factors: flag(d.RopeFactors),
	}
	return out, n.err
}

func tensorDesc(d engine.TensorDesc) (C.mr_tensor_desc, error) {
	var n narrow
	out := C.mr_tensor_desc{
		struct_size: C.sizeof_mr_tensor_desc,
		role:        C.int32_t(d.Role), layer: n.i32("layer", d.Layer), _type: C.int32_t(d.Type),
		ndims: n.i32("dims", len(d.Dims)),
	}
	if len(d.Dims) < 1 || len(d.Dims) > 2 {
		return out, fmt.Errorf("tensor has %d dims, want 1 or 2: %w", len(d.Dims), engine.ErrInvalid)
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
		host_blocks: n.i32("host blocks", c.HostBlocks),
	}
	return out, n.err
}
