package vectors_test

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A codebook that could not be opened for lack of file descriptors is listed without a problem as
// soon as there are some.
func TestCatalogForgetsSystemErrors(t *testing.T) {
	r := newRig(t, nil)
	problem := func(name string) error {
		for _, f := range r.Files() {
			if f.Name == name {
				return f.Problem
			}
		}
		return nil
	}
	saw := 0
	for more := range uint64(5) { // the list itself opens one or two
		name := fmt.Sprint("a", more) // no list has read it before
		require.NoError(t, r.put(t, name, 0, 0, 0, 0x3c))
		next, err := os.Open(os.DevNull)
		require.NoError(t, err)
		lowest := uint64(next.Fd())
		require.NoError(t, next.Close())
		var limit syscall.Rlimit
		require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
		require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: lowest + more, Max: limit.Max}))
		during := problem(name)
		require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit))
		if during != nil {
			saw++
			require.ErrorIs(t, during, syscall.EMFILE)
		}
		require.NoError(t, problem(name), "with %d descriptors it was: %v", more, during)
	}
	require.Positive(t, saw, "no limit let the list reach the file and not open it")
}
