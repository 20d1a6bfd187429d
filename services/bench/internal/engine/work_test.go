package engine

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/synth"
	"github.com/millrace/millrace/services/bench/internal/device"
)

func parse(t *testing.T, d engine.Uniform, typ gguf.Type) *arch.Model {
	t.Helper()
	var file bytes.Buffer
	require.NoError(t, synth.Write(&file, synth.Shape{Architecture: "llama", Desc: d}, synth.Only(typ), 1))
	f, err := gguf.Parse(file.Bytes())
	require.NoError(t, err)
	m, err := arch.Parse(f)
	require.NoError(t, err)
	return m
}

func TestWorkCountsTwoOperationsAWeight(t *testing.T) {
	desc := engine.Uniform{Layers: 2, Hidden: 256, Heads: 4, KVHeads: 2, FFN: 512, Vocab: 96}
	layers := 2.0 * (256*256 + 2*256*128 + 256*256 + 3*256*512)
	const head = 256 * 96
	tied := desc
	tied.TiedHead = true
	for name, tc := range map[string]struct {
		desc               engine.Uniform
		typ                gguf.Type
		kind               device.Kind
		positions, samples int
		want               float64
	}{
		"a prompt":           {desc, gguf.Q8_0, device.KindInt8, 128, 1, 2 * (128*layers + head)},
		"a decode step":      {desc, gguf.Q4K, device.KindInt8, 8, 8, 2 * (8*layers + 8*head)},
		"a tied head":        {tied, gguf.BF16, device.KindBF16, 3, 1, 2 * (3*layers + head)},
		"halves run as f32":  {desc, gguf.F16, device.KindF32, 1, 0, 2 * layers},
		"nothing is nothing": {desc, gguf.F32, device.KindInt8, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			ops := WorkOf(parse(t, tc.desc, tc.typ)).Ops(tc.positions, tc.samples)
			require.Equal(t, tc.want, ops.Sum())
			require.Equal(t, tc.want, ops[tc.kind], "all of one kind")
			require.Equal(t, tc.kind, ops.Kind())
		})
	}
}

func TestWorkCountsEachTypeUnderItsRoof(t *testing.T) {
	// Rows of 100 are stored as F16.
	desc := engine.Uniform{Layers: 1, Hidden: 64, Heads: 2, FFN: 100, Vocab: 32}
	ops := WorkOf(parse(t, desc, gguf.Q8_0)).Ops(1, 1)
	require.Equal(t, 2.0*100*64, ops[device.KindF32])
	require.Equal(t, 2.0*(4*64*64+2*64*100+64*32), ops[device.KindInt8])
	require.Equal(t, device.KindInt8, ops.Kind())
}
