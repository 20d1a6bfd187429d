package route

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReportBeyondOwnIsForeign(t *testing.T) {
	var l ModelLoad
	require.True(t, l.reserve(10, 500, 0))
	l.SetReport(Report{Running: 14, Prefill: 700})
	require.EqualValues(t, 4, l.Foreign())
	require.EqualValues(t, 700, l.Prefill())

	// All own sequences end. Reports that were made before that, and one after it, still show them.
	l.endPrefill(500)
	l.release(10)
	l.SetReport(Report{Running: 14, Prefill: 700})
	require.EqualValues(t, 4, l.Foreign())
	require.EqualValues(t, 200, l.Prefill())
	l.SetReport(Report{Running: 4, Prefill: 0})
	require.Zero(t, l.Foreign(), "too low for an interval")
	l.SetReport(Report{Running: 4, Prefill: 0})
	require.EqualValues(t, 4, l.Foreign())
	require.Zero(t, l.Prefill())
}

func TestReserveCountsForeignSequences(t *testing.T) {
	var l ModelLoad
	l.SetReport(Report{Running: 3, Prefill: 0})
	require.False(t, l.reserve(2, 0, 4))
	require.True(t, l.reserve(1, 0, 4))
	require.False(t, l.reserve(1, 0, 4))
	require.True(t, l.reserve(0, 7, 4), "a request without sequences is not bounded by slots")
	require.True(t, l.reserve(1, 0, 0), "0: no bound")
}

func TestStalledSequencesUseNoSlots(t *testing.T) {
	var l ModelLoad
	require.True(t, l.reserve(9, 0, 0))
	for range 3 {
		l.SetReport(Report{Running: 3, Waiting: 6})
		require.EqualValues(t, 9, l.Busy(), "a sequence that waits although slots are free waits for other prompts, and counts as running")
	}
	l.SetReport(Report{Running: 8, Waiting: 1, Stalled: 9})
	require.Zero(t, l.Busy(), "a sequence that could run would have the slot of a stalled one")
	require.True(t, l.reserve(8, 0, 8))
	require.False(t, l.reserve(1, 0, 8))
	l.SetReport(Report{Running: 8, Waiting: 9})
	require.EqualValues(t, 17, l.Busy(), "slots in use are not free")
	l.release(8)
	l.SetReport(Report{Waiting: 9, Stalled: 9})
	require.Zero(t, l.Busy(), "stalled sequences have lost their slots")
	l.release(9)
	require.Zero(t, l.Busy())
}
