package fleet

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhoeverWaitsForADrainIsToldOfEachOnce(t *testing.T) {
	var d drains
	first := d.wait()
	d.set(false)
	require.NoError(t, first.Err())
	d.set(true)
	d.set(true)
	require.Error(t, first.Err())
	require.Error(t, d.wait().Err(), "who asks while it drains is told at once")
	d.set(false)
	second := d.wait()
	require.NoError(t, second.Err(), "it takes requests again")
	require.Error(t, first.Err())
	d.set(true)
	require.Error(t, second.Err())
}

func TestADrainThatNobodyWaitsForIsRemembered(t *testing.T) {
	var d drains
	d.set(true)
	require.Error(t, d.wait().Err())
	d.set(false)
	require.NoError(t, d.wait().Err())
}
