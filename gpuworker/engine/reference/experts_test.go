package reference

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

func TestRoutes(t *testing.T) {
	for name, tc := range map[string]struct {
		e            engine.Experts
		logits, bias []float64
		want         []Routed
	}{
		"softmax over all experts":             {engine.Experts{Count: 3, Used: 2}, []float64{0, math.Log(2), math.Log(5)}, nil, []Routed{{1, 0.25}, {2, 0.625}}},
		"softmax, divided by the sum":          {engine.Experts{Count: 3, Used: 2, Renorm: true}, []float64{0, math.Log(2), math.Log(6)}, nil, []Routed{{1, 0.25}, {2, 0.75}}},
		"sigmoid, scaled":                      {engine.Experts{Count: 2, Used: 1, Gating: engine.GateSigmoid, WeightScale: 2}, []float64{-1, 0}, nil, []Routed{{1, 1}}},
		"of equal experts the lowest ids":      {engine.Experts{Count: 4, Used: 2}, []float64{0, 0, 0, 0}, nil, []Routed{{0, 0.25}, {1, 0.25}}},
		"a bias chooses and does not weigh":    {engine.Experts{Count: 2, Used: 1, Gating: engine.GateSigmoid, ChoiceBias: true}, []float64{0, 0}, []float64{0, 0.1}, []Routed{{1, 0.5}}},
		"only experts of the best group":       {engine.Experts{Count: 4, Used: 1, Gating: engine.GateSigmoid, Groups: 2, GroupsUsed: 1, GroupBestTwo: true}, []float64{1, -9, 0, 0}, nil, []Routed{{2, 0.5}}},
		"the best expert makes the best group": {engine.Experts{Count: 4, Used: 2, Gating: engine.GateSigmoid, Groups: 2, GroupsUsed: 1}, []float64{1, 0, 0, 0.5}, nil, []Routed{{0, Sigmoid(1)}, {1, 0.5}}},
		"weights so small that they are kept":  {engine.Experts{Count: 1, Used: 1, Gating: engine.GateSigmoid, Renorm: true}, []float64{-800}, nil, []Routed{{0, 0}}},
	} {
		got := Route(tc.logits, tc.bias, &tc.e)
		require.Len(t, got, len(tc.want), name)
		for i, c := range got {
			require.Equal(t, tc.want[i].Expert, c.Expert, name)
			require.InDelta(t, tc.want[i].Weight, c.Weight, 1e-12, name)
		}
	}
	infinite := math.Inf(1)
	for name, tc := range map[string]struct {
		e            engine.Experts
		logits, bias []float64
	}{
		"a logit":              {engine.Experts{Count: 3, Used: 2, Renorm: true}, []float64{1, 2, math.NaN()}, nil},
		"a bias":               {engine.Experts{Count: 3, Used: 2, ChoiceBias: true}, []float64{1, 2, 3}, []float64{0, 0, math.NaN()}},
		"the score of a group": {engine.Experts{Count: 4, Used: 2, ChoiceBias: true, Groups: 2, GroupsUsed: 1, GroupBestTwo: true}, []float64{1, 2, 3, 4}, []float64{0, 0, infinite, -infinite}},
	} {
		got := Route(tc.logits, tc.bias, &tc.e)
		require.Equal(t, []int{0, 1}, []int{got[0].Expert, got[1].Expert}, name)
		require.True(t, math.IsNaN(got[0].Weight) && math.IsNaN(got[1].Weight), name)
	}
}
