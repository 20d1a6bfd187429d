package fleet

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDrainNotifierCallsEachListenerOnce(t *testing.T) {
	var d drainNotifier
	calls := make(chan string, 10)
	listen := func(name string) (stop func()) { return d.listen(func() { calls <- name }) }
	next := func(want ...string) {
		t.Helper()
		var got []string
		for range want {
			got = append(got, <-calls)
		}
		require.ElementsMatch(t, want, got)
	}
	stop := listen("first")
	d.set(false)
	d.set(true)
	d.set(true)
	next("first")
	listen("late")
	next("late") // a listener is called at once if the worker drains
	d.set(false)
	d.set(true)
	next("first", "late")
	stop()
	stop()
	d.set(false)
	d.set(true)
	next("late")
	require.Len(t, d.mu.listeners, 1)
	require.Empty(t, calls)
}

func TestDrainNotifierRemembersADrain(t *testing.T) {
	var d drainNotifier
	calls := make(chan bool, 2)
	d.set(true)
	d.listen(func() { calls <- true })()
	<-calls
	d.set(false)
	d.listen(func() { calls <- false })
	require.Empty(t, calls)
}
