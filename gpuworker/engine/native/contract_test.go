package native_test

import (
	"errors"
	"os"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/enginetest"
	"github.com/millrace/millrace/gpuworker/engine/native"
	"github.com/millrace/millrace/internal/cputest"
)

// memory is the ledger's ceiling in these tests: enough for all of them, and small enough to run
// out of.
const memory = 4 << 30

func openCPU(t testing.TB, path string, threads int) engine.Device {
	t.Helper()
	dev, err := native.Open(native.Options{Device: "cpu", Path: path, Threads: threads, BytesLimit: memory}, hclog.NewNullLogger())
	require.NoError(t, err)
	return dev
}

func TestTheCPUEngineKeepsTheContractOnEveryPath(t *testing.T) {
	paths, ran := []string{"amx", "avx512bf16", "avx512vnni", "avx2", "portable"}, 0 // best first
	if forced := cputest.Path(); forced != "" {
		paths = []string{forced}
	}
	for _, path := range paths {
		if ran > 0 && enginetest.Raced {
			break // the Go code is the same on every path, and the detector does not see the engine's
		}
		dev, err := native.Open(native.Options{Device: "cpu", Path: path, BytesLimit: memory}, hclog.NewNullLogger())
		if errors.Is(err, engine.ErrUnsupported) {
			t.Logf("path %s is not run: %v", path, err)
			continue
		}
		require.NoError(t, err)
		info, err := dev.Info()
		require.NoError(t, err)
		require.Equal(t, path, info.Path)
		require.NoError(t, dev.Close())
		slow := ran > 0 // the best path runs whole, the others shortened; make test-paths runs each whole
		ran++
		t.Run(path, func(t *testing.T) {
			threads := func(t *testing.T, n int) engine.Device {
				t.Helper()
				return openCPU(t, path, n)
			}
			opener := func(t *testing.T) engine.Device {
				t.Helper()
				return threads(t, 0)
			}
			types := func(kv, act engine.Type) bool { return kv != engine.F8 && act == 0 }
			options := enginetest.Options{Numeric: true, OneClass: true, Slow: slow, Threads: threads, Types: types}
			if path == "amx" || path == "avx512bf16" {
				options.Activations = map[engine.Type]engine.Type{engine.BF16: engine.BF16}
			}
			enginetest.Run(t, opener, options)
		})
	}
	require.Positive(t, ran, "none of %v runs here; portable does everywhere", paths)
}

func TestAnUnknownPathIsRefusedByName(t *testing.T) {
	_, err := native.Open(native.Options{Device: "cpu", Path: "mmx"}, hclog.NewNullLogger())
	require.ErrorContains(t, err, "mmx")
}

func TestTheEmbeddedEngineIsRealAndNamesItsBuild(t *testing.T) {
	dev := openCPU(t, "", 1)
	info, err := dev.Info()
	require.NoError(t, err)
	require.Equal(t, "cpu", info.Kind)
	require.EqualValues(t, memory, info.BytesTotal)
	require.Equal(t, 1, info.SMCount)
	require.NotEmpty(t, info.Build)
	rate, err := dev.(engine.Meter).Measure(engine.MeasureF32Ops, 5e6)
	require.NoError(t, err)
	require.Positive(t, rate)
	require.NoError(t, dev.Close())
}

func TestCPUKeepsTheVectorContractOnEveryPath(t *testing.T) {
	paths := []string{"amx", "avx512bf16", "avx512vnni", "avx2", "portable"}
	if forced := cputest.Path(); forced != "" {
		paths = []string{forced}
	}
	ran := 0
	for _, path := range paths {
		if ran > 0 && enginetest.Raced {
			break
		}
		dev, err := native.Open(native.Options{Device: "cpu", Path: path, BytesLimit: memory}, hclog.NewNullLogger())
		if errors.Is(err, engine.ErrUnsupported) {
			t.Logf("path %s is not run: %v", path, err)
			continue
		}
		require.NoError(t, err)
		require.NoError(t, dev.Close())
		ran++
		t.Run(path, func(t *testing.T) {
			threads := func(t *testing.T, n int) engine.Device {
				t.Helper()
				return openCPU(t, path, n)
			}
			opener := func(t *testing.T) engine.Device {
				t.Helper()
				return openCPU(t, path, 0)
			}
			enginetest.RunVectors(t, opener, enginetest.VectorOptions{
				Threads: threads, Largest: os.Getenv("MILLRACE_TEST_LARGEST") != "",
			})
		})
	}
}
