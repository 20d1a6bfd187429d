package synth_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/gguf"
)

// decoder runs one token alone at position 0 in float64, where attention gives back the values and
// rope turns nothing.
type decoder struct {
	t     testing.TB
	f     *gguf.File
	cache map[string][]float64
}

func (d decoder) tensor(name string) ([]float64, gguf.Tensor) {
	tensor, ok := d.f.Tensor(name)
	require.True(d.t, ok, name)
	if d.cache[name] == nil {
		d.cache[name] = weights(d.t, d.f, tensor)
	}
	return d.cache[name], tensor
}

func (d decoder) matmul(name string, x []float64) []float64 {
	w, tensor := d.tensor(name)
	y := make([]float64, tensor.Dims[1])
	for o := range y {
		for i, v := range x {
			y[o] += w[o*len(x)+i] * v
		}
	}
	return y
}

func (d decoder) norm(name string, x []float64) []float64 {
	w, _ := d.tensor(name)
	var squares float64
	for _, v := range x {
		squares += v * v
	}
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = v / math.Sqrt(squares/float64(len(x))+1e-5) * w[i]
	}
	return y
}

func (d decoder) logits(token, layers, queries, keys, headDim int) []float64 {
	embedding, tensor := d.tensor("token_embd.weight")
	n := int(tensor.Dims[0])
	x := append([]float64(nil), embedding[token*n:(token+1)*n]...)
	add := func(y []float64) {
		for i := range x {
			x[i] += y[i]
		}
	}
	for layer := range layers {
		blk := "blk." + string(rune('0'+layer)) + "."
		v := d.matmul(blk+"attn_v.weight", d.norm(blk+"attn_norm.weight", x))
		heads := make([]float64, 0, queries*headDim)
		for h := range queries {
			kv := h / (queries / keys)
			heads = append(heads, v[kv*headDim:(kv+1)*headDim]...)
		}
		add(d.matmul(blk+"attn_output.weight", heads))
		y := d.norm(blk+"ffn_norm.weight", x)
		gate, up := d.matmul(blk+"ffn_gate.weight", y), d.matmul(blk+"ffn_up.weight", y)
		for i, g := range gate {
			up[i] *= g / (1 + math.Exp(-g))
		}
		add(d.matmul(blk+"ffn_down.weight", up))
	}
	return d.matmul("output.weight", d.norm("output_norm.weight", x))
}

func TestLogitsAreSpreadOut(t *testing.T) {
	// Logits are spread out and differ from token to token.
	for _, typ := range []gguf.Type{gguf.BF16, gguf.Q8_0, gguf.Q5_0, gguf.Q4K, gguf.Q6K} {
		d := decoder{t, write(t, small(), typ, 1), map[string][]float64{}}
		best := map[int]bool{}
		for token := range 6 {
			logits := d.logits(token, 2, 4, 2, 64)
			var sum, squares float64
			top := 0
			for i, v := range logits {
				sum, squares = sum+v, squares+v*v
				if v > logits[top] {
					top = i
				}
			}
			n := float64(len(logits))
			std := math.Sqrt(squares/n - sum/n*sum/n)
			require.Greater(t, std, 0.5, "%v: token %d", typ, token)
			require.Less(t, std, 2.0, "%v: token %d", typ, token)
			best[top] = true
		}
		require.GreaterOrEqual(t, len(best), 4, "%v: the likeliest next token depends on the token", typ)
	}
}
