package enginetest

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheComparatorRefusesWhatIsNotANumber(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for name, tc := range map[string]struct {
		got         float32
		want, bound float64
		ok          bool
	}{
		"equal":                        {1, 1, 0, true},
		"inside":                       {1, 1.5, 0.5, true},
		"outside":                      {1, 1.5, 0.4, false},
		"nan for a number":             {nan, 1, 10, false},
		"nan for nan":                  {nan, math.NaN(), 10, false},
		"a number for nan":             {1, math.NaN(), 10, false},
		"infinity for infinity":        {inf, math.Inf(1), 0, true},
		"infinity for a number":        {inf, 1, 1e300, false},
		"the other infinity":           {inf, math.Inf(-1), math.Inf(1), false},
		"an infinite bound":            {1, 2, math.Inf(1), false},
		"a bound that is not a number": {1, 2, math.NaN(), false},
	} {
		t.Run(name, func(t *testing.T) {
			err := Close([]float32{tc.got}, []float64{tc.want}, []float64{tc.bound})
			require.Equal(t, tc.ok, err == nil, "%v", err)
		})
	}
	require.Error(t, Close([]float32{1}, []float64{1, 2}, []float64{1, 1}))
}
