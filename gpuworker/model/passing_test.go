package model

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// withDescriptors calls f while the process may open this many more files.
func withDescriptors(t *testing.T, more int, f func()) {
	t.Helper()
	next, err := os.Open(os.DevNull)
	require.NoError(t, err)
	lowest := uint64(next.Fd())
	require.NoError(t, next.Close())
	var limit syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: lowest + uint64(more), Max: limit.Max}))
	defer func() { require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)) }()
	f()
}

// A list made while the process has no file descriptors left names that problem, and the next list
// does not. The limit holds for root too.
func TestCatalogForgetsSystemErrors(t *testing.T) {
	dir := folder(t)
	problem := func(c *catalog) error {
		for _, e := range c.list() {
			if e.Name == "small" {
				return e.Problem
			}
		}
		return nil
	}
	saw := 0
	for more := range 5 { // the list itself opens one or two
		c := newCatalog(dir, simulated(t))
		var during error
		withDescriptors(t, more, func() { during = problem(c) })
		if during != nil {
			saw++
			require.ErrorIs(t, during, syscall.EMFILE)
		}
		require.NoError(t, problem(c), "with %d descriptors it was: %v", more, during)
		require.NoError(t, c.problem("small"))
	}
	require.Positive(t, saw, "no limit let the list reach the file and not open it")
}

// What the bytes of a file say is read once, also if they are no model.
func TestCatalogReadsUnchangedFileOnce(t *testing.T) {
	c := newCatalog(folder(t), simulated(t))
	first := c.list()
	again := c.list()
	require.Len(t, again, len(first))
	for i := range first {
		if first[i].Problem != nil && first[i].Name != "link" {
			require.Same(t, first[i].Problem, again[i].Problem, first[i].Name)
		}
	}
}
