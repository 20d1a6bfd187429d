package load_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

func TestCeilingIsMeasuredInThisProcess(t *testing.T) {
	rpctest.NoLeaks(t)
	rate, err := load.MeasureCeiling(t.Context(), load.CeilingConfig{
		Connections: 2, Concurrency: 4, Size: load.Size{Prompt: 8, Output: 50},
		Maker: load.Maker{Model: "m", Vocabulary: 100, IDsOnly: true}, Duration: 200 * time.Millisecond,
	}, rpctest.Logger(t))
	require.NoError(t, err)
	require.Positive(t, rate)
}

func TestCeilingExtendsATimeWithoutMessages(t *testing.T) {
	rpctest.NoLeaks(t)
	rate, err := load.MeasureCeiling(t.Context(), load.CeilingConfig{
		Connections: 1, Concurrency: 1, Size: load.Size{Prompt: 8, Output: 50},
		Maker: load.Maker{Model: "m", Vocabulary: 100, IDsOnly: true}, Duration: time.Nanosecond,
	}, rpctest.Logger(t))
	require.NoError(t, err)
	require.Positive(t, rate)
}

func TestCeilingReturnsTheCauseOfAnInterrupt(t *testing.T) {
	rpctest.NoLeaks(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	cancel(stop)
	_, err := load.MeasureCeiling(ctx, load.CeilingConfig{
		Connections: 1, Concurrency: 1, Size: load.Size{Prompt: 8, Output: 50},
		Maker: load.Maker{Model: "m", Vocabulary: 100, IDsOnly: true}, Duration: time.Second,
	}, rpctest.Logger(t))
	require.ErrorIs(t, err, stop)
}

func TestRateNearTheCeilingIsGeneratorLimited(t *testing.T) {
	for name, tc := range map[string]struct {
		rate, ceiling float64
		want          bool
	}{
		"far below":        {100, 1000, false},
		"at the border":    {700, 1000, false},
		"above the border": {701, 1000, true},
		"above it all":     {1200, 1000, true},
		"not measured":     {1200, 0, false},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, load.GeneratorLimited(tc.rate, tc.ceiling)) })
	}
}
