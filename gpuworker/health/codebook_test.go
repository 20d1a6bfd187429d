package health_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/health"
	"github.com/millrace/millrace/gpuworker/vectors"
)

func TestBadCodebookDegradesTheWorker(t *testing.T) {
	// A codebook that is out of service or was not checked for long degrades the worker.
	for name, tc := range map[string]struct {
		book     vectors.Status
		interval time.Duration
		failed   string
	}{
		"in service":     {book: vectors.Status{State: vectors.Ready, VerifiedAge: 3 * time.Minute}, interval: time.Minute},
		"never checked":  {book: vectors.Status{State: vectors.Ready, VerifiedAge: time.Hour}},
		"long unchecked": {book: vectors.Status{State: vectors.Ready, VerifiedAge: 3*time.Minute + 1}, interval: time.Minute, failed: "codebook-residency/b"},
		"out of service": {book: vectors.Status{State: vectors.Failed, Problem: errors.New("it is broken")}, interval: time.Minute, failed: "codebook/b"},
	} {
		t.Run(name, func(t *testing.T) {
			tc.book.Name = "b"
			state, checks := health.Assess(health.Input{Codebooks: []vectors.Status{tc.book}, VerifyInterval: tc.interval})
			var failed []string
			for _, c := range checks {
				if !c.OK {
					failed = append(failed, c.Name)
					require.NotEmpty(t, c.Message)
				}
			}
			if tc.failed == "" {
				require.Equal(t, health.Ready, state)
				require.Empty(t, failed)
				return
			}
			require.Equal(t, health.Degraded, state)
			require.Equal(t, []string{tc.failed}, failed)
		})
	}
}
