package sametest_test

import (
	"os"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/native"
	"github.com/millrace/millrace/gpuworker/sametest"
)

// cudaVariable names the CUDA engine's library, or its folder, for the tests that need a GPU; deviceVariable the GPU, or GPUs that
// hold models together, where that is not the first that can be used.
const (
	cudaVariable   = "MILLRACE_TEST_CUDA_ENGINE"
	deviceVariable = "MILLRACE_TEST_CUDA_DEVICE"
)

func openCUDA(t *testing.T) engine.Device {
	t.Helper()
	device := os.Getenv(deviceVariable)
	if device == "" {
		device = "gpu"
	}
	dev, err := native.Open(native.Options{Device: device, BytesLimit: 16 << 30, EnginePath: os.Getenv(cudaVariable)}, hclog.NewNullLogger())
	require.NoError(t, err)
	return dev
}

// With each type of cache every bucket of decoding rows and its neighbours come twice.
func TestTheCUDAEngineAndTheLoopKeepTheirBits(t *testing.T) {
	if os.Getenv(cudaVariable) == "" {
		t.Skipf("%s is not set: it names libmillrace_cuda.so on a machine with a GPU", cudaVariable)
	}
	for name, cache := range map[string]engine.Type{"f16": engine.F16, "bf16": engine.BF16, "f8": engine.F8} {
		t.Run(name, func(t *testing.T) {
			sametest.Run(t, openCUDA, chosen(t, sametest.Options{
				Scenarios: 720, Workers: 2, Cache: cache, RowsEvery: 15, WideEvery: 20, LongEvery: 120,
				Demanded: append(sametest.Everywhere(), sametest.SawLong),
			}))
		})
	}
}

// Several GPUs hold every model together. They refuse the models whose heads they cannot divide, and
// among these the one with the most keys.
func TestCUDAEnginesTogetherKeepTheirBits(t *testing.T) {
	if os.Getenv(cudaVariable) == "" {
		t.Skipf("%s is not set: it names libmillrace_cuda.so on a machine with a GPU", cudaVariable)
	}
	dev := openCUDA(t)
	info, err := dev.Info()
	require.NoError(t, err)
	require.NoError(t, dev.Close())
	if info.Devices < 2 {
		t.Skipf("%s names no GPUs that hold models together: set it to some, such as cuda:0,1", deviceVariable)
	}
	sametest.Run(t, openCUDA, chosen(t, sametest.Options{
		Scenarios: 240, Workers: 1, Cache: engine.F16, RowsEvery: 20, WideEvery: 30,
		Demanded: []string{
			sametest.SawExperts, sametest.SawPreempted, sametest.SawSwapped, sametest.SawCached, sametest.SawChunks,
			sametest.SawMixed, sametest.SawWide,
		},
	}))
}

func TestMutantsOfTheCUDAEngineAreCaught(t *testing.T) {
	if os.Getenv(cudaVariable) == "" {
		t.Skipf("%s is not set: it names libmillrace_cuda.so on a machine with a GPU", cudaVariable)
	}
	catchMutants(t, openCUDA, engine.F16)
}
