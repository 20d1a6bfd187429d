package roof_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/synth"
	"github.com/millrace/millrace/services/bench/internal/roof"
)

func parse(t *testing.T, d engine.ModelDesc, typ gguf.Type) *arch.Model {
	t.Helper()
	var file bytes.Buffer
	require.NoError(t, synth.Write(&file, synth.Shape{Architecture: "llama", Desc: d}, synth.Only(typ), 1))
	f, err := gguf.Parse(file.Bytes())
	require.NoError(t, err)
	m, err := arch.Parse(f)
	require.NoError(t, err)
	return m
}

func TestOperationsAreTwoForEachWeightAndTokenAndTheHeadOnlyWhereSampled(t *testing.T) {
	desc := engine.ModelDesc{Layers: 2, Hidden: 256, Heads: 4, KVHeads: 2, FFN: 512, Vocab: 96}
	layers := 2.0 * (256*256 + 2*256*128 + 256*256 + 3*256*512)
	const head = 256 * 96
	tied := desc
	tied.TiedHead = true
	for name, tc := range map[string]struct {
		desc               engine.ModelDesc
		typ                gguf.Type
		kind               roof.Kind
		positions, samples int
		want               float64
	}{
		"a prompt":           {desc, gguf.Q8_0, roof.Int8, 128, 1, 2 * (128*layers + head)},
		"a decode step":      {desc, gguf.Q4K, roof.Int8, 8, 8, 2 * (8*layers + 8*head)},
		"a tied head":        {tied, gguf.BF16, roof.BF16, 3, 1, 2 * (3*layers + head)},
		"halves run as f32":  {desc, gguf.F16, roof.F32, 1, 0, 2 * layers},
		"nothing is nothing": {desc, gguf.F32, roof.Int8, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			ops := roof.WorkOf(parse(t, tc.desc, tc.typ)).Ops(tc.positions, tc.samples)
			require.Equal(t, tc.want, ops.Sum())
			require.Equal(t, tc.want, ops[tc.kind], "all of one kind")
			require.Equal(t, tc.kind, ops.Kind())
		})
	}
}

func TestASizeThatDoesNotFitATypeCountsUnderItsOwnRoof(t *testing.T) {
	// Rows of 100 are stored as F16.
	desc := engine.ModelDesc{Layers: 1, Hidden: 64, Heads: 2, FFN: 100, Vocab: 32}
	ops := roof.WorkOf(parse(t, desc, gguf.Q8_0)).Ops(1, 1)
	require.Equal(t, 2.0*100*64, ops[roof.F32])
	require.Equal(t, 2.0*(4*64*64+2*64*100+64*32), ops[roof.Int8])
	require.Equal(t, roof.Int8, ops.Kind())
}

func TestASharesIsTheTimeAtTheRoofOverTheTimeTaken(t *testing.T) {
	roofs := roof.Roofs{Read: 50e9, Ops: [roof.Kinds]float64{1000e9, 0, 100e9}}
	for name, tc := range map[string]struct {
		ops  roof.Ops
		took float64
		want float64
	}{
		"half":              {roof.Ops{500e9, 0, 0}, 1, 0.5},
		"all":               {roof.Ops{1000e9, 0, 0}, 1, 1},
		"impossible":        {roof.Ops{1000e9, 0, 0}, 0.5, 2},
		"two kinds":         {roof.Ops{250e9, 0, 25e9}, 1, 0.5},
		"a roof not known":  {roof.Ops{250e9, 1, 0}, 1, 0},
		"no time":           {roof.Ops{250e9, 0, 0}, 0, 0},
		"no work, no share": {roof.Ops{}, 1, 0},
	} {
		t.Run(name, func(t *testing.T) { require.InDelta(t, tc.want, roofs.Share(tc.ops, tc.took), 1e-12) })
	}
}

// meter gives 1, 2, 3, 4 for the roofs in their order.
type meter struct{ failure error }

func (m meter) Measure(what engine.Measure, _ uint64) (float64, error) {
	if what == engine.MeasureBF16Ops {
		return 0, m.failure
	}
	return float64(what) + 1, nil
}

func TestRoofsThatADeviceDoesNotMeasureStayUnknown(t *testing.T) {
	got, err := roof.Measure(meter{engine.ErrUnsupported}, time.Second)
	require.NoError(t, err)
	require.Equal(t, roof.Roofs{Read: 1, Ops: [roof.Kinds]float64{roof.Int8: 2, roof.F32: 3}}, got)
	failure := errors.New("on fire")
	_, err = roof.Measure(meter{failure}, time.Second)
	require.ErrorIs(t, err, failure)
}

func TestTheLargerOfTwoMeasurementsIsTheRoof(t *testing.T) {
	a := roof.Roofs{Read: 5, Ops: [roof.Kinds]float64{1, 20, 3}}
	b := roof.Roofs{Read: 4, Ops: [roof.Kinds]float64{10, 2, 3}}
	require.Equal(t, roof.Roofs{Read: 5, Ops: [roof.Kinds]float64{10, 20, 3}}, a.Max(b))
}
