package route

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhatAReportShowsBeyondOwnIsOfOthers(t *testing.T) {
	var l ModelLoad
	require.True(t, l.take(10, 500, 0))
	l.Reported(Report{Running: 14, Prefill: 700})
	require.EqualValues(t, 4, l.Foreign())
	require.EqualValues(t, 700, l.Prefill())

	// All own sequences end; a report that was made before still has them, and one after it too.
	l.started(500)
	l.ended(10)
	l.Reported(Report{Running: 14, Prefill: 700})
	require.EqualValues(t, 4, l.Foreign())
	require.EqualValues(t, 200, l.Prefill())
	l.Reported(Report{Running: 4, Prefill: 0})
	require.Zero(t, l.Foreign(), "too low for an interval")
	l.Reported(Report{Running: 4, Prefill: 0})
	require.EqualValues(t, 4, l.Foreign())
	require.Zero(t, l.Prefill())
}

func TestABoundIsOfAllSequences(t *testing.T) {
	var l ModelLoad
	l.Reported(Report{Running: 3, Prefill: 0})
	require.False(t, l.take(2, 0, 4))
	require.True(t, l.take(1, 0, 4))
	require.False(t, l.take(1, 0, 4))
	require.True(t, l.take(0, 7, 4), "what needs no place is not bounded by them")
	require.True(t, l.take(1, 0, 0), "0 is no bound")
}

func TestReadersThatDoNotReadTakeNoPlaces(t *testing.T) {
	var l ModelLoad
	require.True(t, l.take(9, 0, 0))
	for range 3 {
		l.Reported(Report{Running: 3, Waiting: 6})
		require.EqualValues(t, 9, l.Busy(), "what waits while places are free may wait for other prompts, and has a place as good as taken")
	}
	l.Reported(Report{Running: 8, Waiting: 1, Stalled: 9})
	require.Zero(t, l.Busy(), "if one could run, it had the place of one that is stalled")
	require.True(t, l.take(8, 0, 8))
	require.False(t, l.take(1, 0, 8))
	l.Reported(Report{Running: 8, Waiting: 9})
	require.EqualValues(t, 17, l.Busy(), "places that are in use are not free, whoever waits for one")
	l.ended(8)
	l.Reported(Report{Waiting: 9, Stalled: 9})
	require.Zero(t, l.Busy(), "they have lost their places and do not want them back")
	l.ended(9)
	require.Zero(t, l.Busy())
}
