package batch

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// A crowd of one tenant decodes long answers, which cannot be slowed, next to one sequence of
// another tenant. When the crowd has ended, prompts of its tenant wait for a moment, not until the
// one sequence has paid for all of the crowd's time.
func TestDebtOfDecodingCrowdIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const target = 40 * time.Millisecond
		l, _ := start(t, Config{
			SharedTarget: target, Context: 20_000, Grain: 1024,
			Runner: engine.RunnerConfig{MaxSequences: 128, KVBlocks: 20_000, MaxBatchedTokens: 2048},
		}, small)
		took(t, l, call("one", 1)) // now the guard has the tenant's speed alone
		ended, served := make(chan error), make(chan error)
		for seed := range int32(100) {
			r := call("crowd", 100+seed)
			r.Prompt, r.MaxTokens = r.Prompt[:8], 250
			go func() { ended <- readAll(l, r) }()
		}
		time.Sleep(15 * time.Second) // all of them decode
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		long := call("one", 2)
		long.MaxTokens = 19_000
		one, err := submit(l, long)
		require.NoError(t, err)
		go func() {
			for {
				if events, err := one.Recv(ctx, nil); err != nil || len(events) == 0 {
					return
				}
			}
		}()
		time.Sleep(5 * time.Second)
		const late = 8
		for seed := range int32(late) {
			r := call("crowd", 1000+seed)
			r.MaxTokens = 1
			go func() { served <- readAll(l, r) }()
		}
		for range 100 {
			require.NoError(t, <-ended)
		}
		begin := time.Now()
		for i := range late {
			require.NoError(t, <-served)
			waited := time.Since(begin)
			t.Logf("prompt %d waited %v", i, waited.Round(time.Millisecond))
			require.Less(t, waited, time.Duration(i+1)*time.Second)
		}
		one.Cancel()
	})
}

// add books a prompt's step in full and bounds the debt of steps without prompts.
func TestAddBoundsDebt(t *testing.T) {
	const most = 40 * time.Millisecond
	d := tenantGuard{maxCredit: most}
	for range 100 {
		d.add(10*time.Millisecond, 200*time.Millisecond, false)
	}
	require.Equal(t, -2*most, d.credit, "rows that decode owe two targets")
	d.add(10*time.Millisecond, 510*time.Millisecond, true)
	require.Equal(t, -500*time.Millisecond, d.credit, "a step with prompts owes all of itself")
	for range 100 {
		d.add(10*time.Millisecond, 510*time.Millisecond, true)
		d.add(10*time.Millisecond, 200*time.Millisecond, false)
	}
	require.Equal(t, -500*time.Millisecond, d.credit, "and no more, however many of them there are")
	for range 1000 {
		d.add(10*time.Millisecond, 5*time.Millisecond, false)
	}
	require.Equal(t, most, d.credit)
}

// readAll reads an answer to its end.
func readAll(l *Loop, r Request) error {
	s, err := submit(l, r)
	for err == nil {
		var events []Event
		if events, err = s.Recv(context.Background(), nil); err == nil && len(events) == 0 {
			return nil
		}
	}
	return err
}
