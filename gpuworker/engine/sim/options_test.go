package sim

import (
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
)

func TestADeviceSaysWhetherItsClassesAreOne(t *testing.T) {
	for options, want := range map[string]bool{"sim": true, "sim:two-classes=true": false, "sim:two-classes=false": true} {
		o, err := ParseOptions(options)
		require.NoError(t, err)
		d, err := Open(o, hclog.NewNullLogger())
		require.NoError(t, err)
		info, err := d.Info()
		require.NoError(t, err)
		require.Equal(t, want, info.OneClass, options)
		require.NoError(t, d.Close())
	}
	_, err := ParseOptions("sim:two-classes=perhaps")
	require.ErrorContains(t, err, "two-classes")
}
