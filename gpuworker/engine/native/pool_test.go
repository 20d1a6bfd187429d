package native

import (
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/internal/cputest"
)

func TestAPoolKeepsWhatItsLimitAllows(t *testing.T) {
	const size = 1 << 20
	for name, tc := range map[string]struct {
		limit, kept, hits uint64
	}{
		"the engine's own limit": {0, size, 1},
		"no pool":                {NoPool, 0, 0},
		"less than the buffer":   {size / 2, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			dev, err := Open(Options{Device: "cpu", Path: cputest.Path(), PoolLimit: tc.limit}, hclog.NewNullLogger())
			require.NoError(t, err)
			defer func() { require.NoError(t, dev.Close()) }()
			for range 2 {
				b, err := dev.Alloc(size, engine.Staging)
				require.NoError(t, err)
				require.NoError(t, b.Free())
			}
			info, err := dev.Info()
			require.NoError(t, err)
			require.Equal(t, tc.kept, info.BytesPooled)
			require.Equal(t, tc.hits, info.PoolHits)
		})
	}
}
