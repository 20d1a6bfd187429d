package rpc

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// TestEndedCallHoldsNothing receives in a goroutine that outlives its handler by a message.
func TestEndedCallHoldsNothing(t *testing.T) {
	b := &requestBudget{max: 1 << 20}
	large := &pb.GenerateRequest{Input: &pb.GenerateRequest_Prompt{Prompt: strings.Repeat("x", 300<<10)}}
	for range 10 {
		c := &call{requests: b}
		require.NoError(t, c.holdRequest(large, WorkerDomain))
		require.Positive(t, b.used.Load())
		c.close()
		require.Zero(t, b.used.Load())
		require.NoError(t, c.holdRequest(large, WorkerDomain))
		require.Zero(t, b.used.Load())
	}
	var both sync.WaitGroup
	for range 1000 {
		c := &call{requests: b}
		both.Go(c.close)
		both.Go(func() { _ = c.holdRequest(large, WorkerDomain) })
	}
	both.Wait()
	require.Zero(t, b.used.Load())
}

// TestAnnotateReplacesValues annotates one key often: a stream that has lost its worker looks for
// another several times a second.
func TestAnnotateReplacesValues(t *testing.T) {
	c := &call{id: "r1"}
	ctx := context.WithValue(t.Context(), callKey{}, c)
	Annotate(ctx, "model", "m")
	for i := range 1000 {
		Annotate(ctx, "queued", i)
	}
	require.Equal(t, []any{"request_id", "r1", "model", "m", "queued", 999}, c.logFields())
}

func TestAnnotateClipsTexts(t *testing.T) {
	c := &call{id: "r1"}
	ctx := context.WithValue(t.Context(), callKey{}, c)
	Annotate(ctx, "model", strings.Repeat("語", 16<<20/3))
	Annotate(ctx, "why", errors.New(strings.Repeat("a", 16<<20)))
	Annotate(ctx, "tokens", 7)
	fields := c.logFields()
	for _, at := range []int{3, 5} {
		text := fields[at].(string)
		require.LessOrEqual(t, len(text), 255)
		require.Greater(t, len(text), 245)
		require.True(t, utf8.ValidString(text))
	}
	require.Equal(t, 7, fields[7])
}

// TestRefusedRequestReservesNothing checks that a refused request takes no bytes even for a moment,
// so that others that fit are accepted.
func TestRefusedRequestReservesNothing(t *testing.T) {
	b := &requestBudget{max: 100}
	stop := make(chan struct{})
	var refused sync.WaitGroup
	defer refused.Wait()
	defer close(stop)
	for range 2 {
		started := make(chan struct{})
		refused.Go(func() {
			close(started)
			for {
				select {
				case <-stop:
					return
				default:
					if _, ok := b.reserve(101); ok {
						panic("taken")
					}
				}
			}
		})
		<-started
	}
	for range 100_000 {
		_, ok := b.reserve(100)
		require.True(t, ok)
		b.used.Add(-100)
	}
}
