package fleet

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhoeverListensIsToldOfEachDrainOnce(t *testing.T) {
	var d drains
	told := make(chan string, 10)
	hear := func(name string) (stop func()) { return d.listen(func() { told <- name }) }
	next := func(want ...string) {
		t.Helper()
		var got []string
		for range want {
			got = append(got, <-told)
		}
		require.ElementsMatch(t, want, got)
	}
	stop := hear("first")
	d.set(false)
	d.set(true)
	d.set(true)
	next("first")
	hear("late")
	next("late") // who listens while it drains is told at once
	d.set(false)
	d.set(true)
	next("first", "late")
	stop()
	stop()
	d.set(false)
	d.set(true)
	next("late")
	require.Len(t, d.hears, 1)
	require.Empty(t, told)
}

func TestADrainThatNobodyHearsIsRemembered(t *testing.T) {
	var d drains
	told := make(chan bool, 2)
	d.set(true)
	d.listen(func() { told <- true })()
	<-told
	d.set(false)
	d.listen(func() { told <- false })
	require.Empty(t, told)
}
