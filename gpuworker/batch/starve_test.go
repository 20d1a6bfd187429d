package batch

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Sequences whose readers do not read come before others in the queue, and there may be any number of them.
func TestReadersThatDoNotReadKeepNobodyFromAPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := start(t, Config{YieldAfter: 10 * time.Millisecond, StallLimit: time.Hour}, ticking)
		slow := Request{Prompt: prompt(5, 1), MaxTokens: 400, PromptTopN: -1, Bypass: true}
		for range mostPassed + 10 {
			_, err := submit(l, slow)
			require.NoError(t, err)
		}
		time.Sleep(10 * time.Second) // each had its place, and lost it
		s, err := submit(l, Request{Prompt: prompt(20, 2), MaxTokens: 10, PromptTopN: -1})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = s.Recv(ctx, nil)
		require.NoError(t, err)
	})
}
