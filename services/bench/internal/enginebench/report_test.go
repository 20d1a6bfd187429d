package enginebench

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/bench/internal/gauge"
	"github.com/millrace/millrace/services/bench/internal/roof"
)

func TestALineRelatesTheMedianToTheRoof(t *testing.T) {
	phase := func(d time.Duration) gauge.Phase {
		return gauge.Phase{Positions: 10, Samples: 10, Steps: 5, Bytes: 1000, Time: d}
	}
	var roofs roof.Roofs
	phases := []gauge.Phase{phase(4 * time.Second), phase(2 * time.Second), phase(time.Second)}
	l := line("decode", 2, phases, []float64{1000, 1000, 1000}, roof.Work{}, roofs, 199)
	require.InDelta(t, 5, l.TokensPerSecond.Median, 1e-9)
	require.InDelta(t, 2.5, l.TokensPerSecond.Min, 1e-9)
	require.InDelta(t, 10, l.TokensPerSecond.Max, 1e-9)
	require.InDelta(t, 200, l.BytesPerStep, 1e-9)
	require.InDelta(t, 500, l.BytesPerSecond, 1e-9)
	require.InDelta(t, 0.5, l.ReadShare, 1e-9)
	l = line("decode", 2, phases, []float64{250, 2500, 2000}, roof.Work{}, roofs, 199)
	require.InDelta(t, 0.5, l.ReadShare, 1e-9, "the median of 250/250, 500/2500 and 1000/2000")
	l = line("decode", 2, phases, []float64{0, 0, 0}, roof.Work{}, roofs, 199)
	require.Zero(t, l.ReadShare, "no roof is known")
	cached := line("decode", 2, []gauge.Phase{phase(time.Second)}, []float64{1000}, roof.Work{}, roofs, 200)
	require.Zero(t, cached.ReadShare, "200 bytes a step may all come from a cache of 200")
}

func TestALoadThatTakesMoreThanItsPartsFailsTheRun(t *testing.T) {
	m := Memory{DevicePeak: 100, Model: 60, Tensor: 20, KV: 15, Workspace: 5}
	require.NoError(t, (&Report{Load: Load{Memory: m}}).check())
	m.DevicePeak++
	require.ErrorIs(t, (&Report{Load: Load{Memory: m}}).check(), ErrMemory)
}

func TestAShareAboveTheRoofFailsTheRun(t *testing.T) {
	for name, tc := range map[string]struct {
		line Line
		want string
	}{
		"below":        {Line{Class: "decode", Batch: 1, ReadShare: 0.99, OpsKind: "int8", OpsShare: 0.5}, ""},
		"exactly":      {Line{Class: "decode", Batch: 1, ReadShare: 1}, ""},
		"too much":     {Line{Class: "decode", Batch: 4, ReadShare: 1.01, OpsKind: "int8"}, "decode at batch 4 reaches 101.0 % of the read roof"},
		"operations":   {Line{Class: "prefill", Batch: 1, OpsKind: "bf16", OpsShare: 2}, "prefill at batch 1 reaches 200.0 % of the bf16 roof"},
		"not measured": {Line{Class: "decode", Batch: 1}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := (&Report{Lines: []Line{tc.line}}).check()
			if tc.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, ErrTooFast)
			require.ErrorContains(t, err, tc.want)
		})
	}
}
