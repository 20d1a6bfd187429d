package kvcache

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHostBlocksAreTakenWholeOrNotAtAll(t *testing.T) {
	c := New(Config{HostBlocks: 3, BlockSize: 1})
	for _, n := range []int{-1, 4} {
		_, ok := c.AllocHost(n)
		require.False(t, ok)
		require.Equal(t, 3, c.FreeHost())
	}
	none, ok := c.AllocHost(0)
	require.True(t, ok)
	require.Empty(t, none)
	a, ok := c.AllocHost(2)
	require.True(t, ok)
	require.Equal(t, []int32{0, 1}, a, "low numbers first")
	b, ok := c.AllocHost(1)
	require.True(t, ok)
	require.Equal(t, []int32{2}, b)
	require.Zero(t, c.FreeHost())
	require.NoError(t, c.ReleaseHost(a))
	a, ok = c.AllocHost(2)
	require.True(t, ok)
	require.Equal(t, []int32{0, 1}, a)
}

func TestHostBlocksThatAreNotTakenAreNotGivenBack(t *testing.T) {
	c := New(Config{HostBlocks: 4, BlockSize: 1})
	taken, _ := c.AllocHost(2)
	for name, bad := range map[string][]int32{
		"unknown":   {4},
		"negative":  {-1},
		"free":      {3},
		"twice":     {0, 0},
		"half good": {taken[0], taken[1], 3},
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorContains(t, c.ReleaseHost(bad), "it is not taken")
			require.Equal(t, 2, c.FreeHost())
		})
	}
	require.NoError(t, c.ReleaseHost(taken))
	require.Error(t, c.ReleaseHost(taken), "a second time")
	require.Equal(t, 4, c.FreeHost())
}

func TestOthersMayReadTheNumbersWhileTheOwnerWorks(t *testing.T) {
	c := New(Config{Blocks: 8, BlockSize: 2, HostBlocks: 2})
	var readers sync.WaitGroup
	stop := make(chan struct{})
	readers.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if c.Free() > c.Total() || c.Cached() > c.Total() || c.FreeHost() > 2 || c.Stats().Hits > 1000 || c.BlocksFor(3) != 2 {
				t.Error("a number that cannot be")
				return
			}
		}
	})
	for i := range 200 {
		require.NoError(t, c.Release(compute(t, c, Root{}, run(int32(i%3), 7))))
		host, _ := c.AllocHost(1)
		require.NoError(t, c.ReleaseHost(host))
	}
	close(stop)
	readers.Wait()
}
