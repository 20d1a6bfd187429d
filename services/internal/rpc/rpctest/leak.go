package rpctest

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
)

// leakTimeout is a hang guard: it bounds the wait for goroutines after the test's own clean-up.
const leakTimeout = time.Minute

// NoLeaks fails the test if goroutines that started after this call still run after its clean-up.
// Call it first in the test. It does not work in parallel tests.
func NoLeaks(t testing.TB) {
	t.Helper()
	before := goroutines()
	t.Cleanup(func() {
		var left []string
		for deadline := time.Now().Add(leakTimeout); ; time.Sleep(10 * time.Millisecond) {
			left = left[:0]
			for id, stack := range goroutines() {
				if _, known := before[id]; !known && !ignored(stack) {
					left = append(left, stack)
				}
			}
			if len(left) == 0 {
				return
			}
			if time.Now().After(deadline) {
				break
			}
		}
		t.Errorf("%d goroutines outlive the test:\n\n%s", len(left), strings.Join(left, "\n\n"))
	})
}

// goroutines returns the stacks of all goroutines but the caller's, by id.
func goroutines() map[string]string {
	buf := make([]byte, 1<<20)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) {
			buf = buf[:n]
			break
		}
		buf = make([]byte, 2*len(buf))
	}
	all := map[string]string{}
	for i, stack := range strings.Split(string(buf), "\n\n") {
		var id int
		if _, err := fmt.Sscanf(stack, "goroutine %d ", &id); err != nil || i == 0 {
			continue
		}
		all[fmt.Sprint(id)] = stack
	}
	return all
}

// ignored reports whether a goroutine belongs to the testing package or the runtime.
func ignored(stack string) bool {
	for _, mark := range []string{"testing.(*T).Run", "testing.tRunner.func", "runtime.goexit0", "created by runtime.", "testing.(*M)"} {
		if strings.Contains(stack, mark) {
			return !strings.Contains(stack, "created by github.com/millrace")
		}
	}
	return false
}
