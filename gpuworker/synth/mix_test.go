package synth_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/synth"
)

// Of 24 layers the first three, the last three and every third between give values and outputs more
// bits.
func TestAMixGivesMoreBitsToWhatLosesMostByFew(t *testing.T) {
	picked := map[string]bool{}
	for _, layer := range []string{"0", "1", "2", "5", "8", "11", "14", "17", "20", "21", "22", "23"} {
		picked[layer] = true
	}
	for mix, usual := range map[synth.Mix]gguf.Type{synth.Q4KM: gguf.Q4K, synth.Q5KM: gguf.Q5K} {
		for _, tied := range []bool{false, true} {
			shape := small()
			shape.Desc.Layers, shape.Desc.TiedHead = 24, tied
			var buf bytes.Buffer
			require.NoError(t, synth.Write(&buf, shape, mix, 1))
			f, err := gguf.Parse(buf.Bytes())
			require.NoError(t, err)
			_, err = arch.Parse(f)
			require.NoError(t, err, "a model that a worker takes")
			var bytesOf uint64
			for _, tensor := range f.Tensors() {
				bytesOf += tensor.Size
				if len(tensor.Dims) == 1 {
					continue
				}
				want := usual
				part := strings.Split(tensor.Name, ".")
				if tensor.Name == "output.weight" || tensor.Name == "token_embd.weight" && tied ||
					(strings.Contains(tensor.Name, "attn_v.") || strings.Contains(tensor.Name, "ffn_down.")) && picked[part[1]] {
					want = gguf.Q6K
				}
				require.Equal(t, want, tensor.Type, "%v, tied %v: %s", mix, tied, tensor.Name)
			}
			size, err := synth.TensorBytes(shape, mix)
			require.NoError(t, err)
			require.Equal(t, bytesOf, size)
		}
	}
}
