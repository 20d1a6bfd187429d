package enginetest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// VectorOptions select the checks of an engine's codebooks.
type VectorOptions struct {
	// Jobs is the number of random trainings that are compared with the reference; 0 = 200, under
	// the race detector 50.
	Jobs int
	// Largest adds codebooks of 65 536 codewords of dimension 4 096, which take minutes and 5 GB of
	// host memory.
	Largest bool
	// Threads opens the device with a number of threads, which must not change bits; nil = the
	// engine has no such option.
	Threads func(t *testing.T, threads int) engine.Device
	// Limited opens the device with a ledger of this number of bytes, beyond which it spools rows;
	// nil = it does not spool.
	Limited func(t *testing.T, bytes uint64) engine.Device
}

// RunVectors checks the whole contract of engine.Vectors: every bit of every result must be that of
// the reference. Every subtest opens its own device and checks that it is empty at the end.
func RunVectors(t *testing.T, opener func(*testing.T) engine.Device, opts VectorOptions) {
	if opts.Jobs == 0 {
		opts.Jobs = randomJobs
	}
	for _, part := range []struct {
		name string
		run  func(*testing.T, engine.Vectors, VectorOptions)
	}{
		{"trainings", testTrainings},
		{"resumed trainings", testResumed},
		{"known trainings", testKnownTrainings},
		{"slices", testSlices},
		{"encoding", testEncoding},
		{"wide codes", testWideCodes},
		{"near ties", testNearTies},
		{"largest", testLargest},
		{"encoding at once", testEncodingAtOnce},
		{"resident bytes", testResidentCodebook},
		{"refused trainings", testRefusedTrainings},
		{"refused rows", testRefusedRows},
		{"refused codes", testRefusedCodes},
	} {
		t.Run(part.name, func(t *testing.T) { part.run(t, openVectors(t, opener), opts) })
	}
	t.Run("memory", func(t *testing.T) { testVectorMemory(t, opener(t)) })
	t.Run("refused memory", func(t *testing.T) { testVectorRefusals(t, opener(t)) })
	if opts.Limited != nil {
		t.Run("spooled rows", func(t *testing.T) { testSpooled(t, opts.Limited) })
	}
	if opts.Threads != nil {
		t.Run("threads", func(t *testing.T) {
			for _, threads := range []int{1, 2, 3} {
				dev := openVectors(t, func(t *testing.T) engine.Device { t.Helper(); return opts.Threads(t, threads) })
				for seed := range uint64(opts.Jobs / 10) {
					require.NoError(t, RandomJob(seed).Check(dev), "seed %d with %d threads", seed, threads)
				}
			}
		})
	}
}

// openVectors opens a device. The test closes it when it ends, which fails if memory was not freed.
func openVectors(t *testing.T, opener func(*testing.T) engine.Device) engine.Vectors {
	t.Helper()
	dev := opener(t)
	t.Cleanup(func() {
		info, err := dev.Info()
		require.NoError(t, err)
		require.Equal(t, [engine.PurposeCount]uint64{}, info.BytesUsed, "bytes of a closed trainer or codebook are still counted")
		require.NoError(t, dev.Close())
	})
	vectors, ok := dev.(engine.Vectors)
	require.True(t, ok, "the device has no vector codebooks")
	return vectors
}

func testTrainings(t *testing.T, dev engine.Vectors, opts VectorOptions) {
	for seed := range uint64(opts.Jobs) {
		job := RandomJob(seed)
		require.NoError(t, job.Check(dev), "seed %d: %v", seed, job)
	}
}

func testResumed(t *testing.T, dev engine.Vectors, opts VectorOptions) {
	for seed := range uint64(opts.Jobs / 5) {
		job := RandomJob(1000 + seed)
		require.NoError(t, job.CheckResumed(dev), "seed %d: %v", 1000+seed, job)
		require.NoError(t, job.CheckPastItsEnd(dev), "seed %d: %v", 1000+seed, job)
	}
}

// testKnownTrainings checks the jobs that chance rarely makes.
func testKnownTrainings(t *testing.T, dev engine.Vectors, _ VectorOptions) {
	for name, job := range cornerJobs() {
		t.Run(name, func(t *testing.T) {
			if Raced && strings.HasPrefix(name, "many codewords") {
				t.Skip("the reference takes minutes for them under the race detector: run make test, which CI does too")
			}
			require.NoError(t, job.Check(dev), "%v", job)
		})
	}
}
