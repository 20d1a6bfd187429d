package native_test

import (
	"os"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/enginetest"
	"github.com/millrace/millrace/gpuworker/engine/native"
	"github.com/millrace/millrace/gpuworker/engine/rules"
)

// cudaVariable names the CUDA engine's library, or its folder, for the tests that need a GPU.
// deviceVariable names the GPU, or the GPUs that hold models together, if it is not the first
// usable one.
const (
	cudaVariable   = "MILLRACE_TEST_CUDA_ENGINE"
	deviceVariable = "MILLRACE_TEST_CUDA_DEVICE"
)

func openCUDA(t *testing.T) engine.Device {
	t.Helper()
	return openCUDAOf(t, memory)
}

func openCUDAOf(t *testing.T, limit uint64) engine.Device {
	t.Helper()
	device := os.Getenv(deviceVariable)
	if device == "" {
		device = "gpu"
	}
	dev, err := native.Open(native.Options{Device: device, BytesLimit: limit, EnginePath: os.Getenv(cudaVariable)}, hclog.NewNullLogger())
	require.NoError(t, err)
	return dev
}

func TestTheCUDAEngineKeepsTheContract(t *testing.T) {
	if os.Getenv(cudaVariable) == "" {
		t.Skipf("%s is not set: it names libmillrace_cuda.so on a machine with a GPU", cudaVariable)
	}
	// By default, the matrices that share activations decide their type: bf16 for BF16 and F32
	// matrices, f16 for all others, and for quantised ones whatever the configuration says.
	byModel := map[engine.Type]engine.Type{}
	for _, weights := range rules.WeightTypes() {
		byModel[weights] = engine.F16
	}
	byModel[engine.BF16], byModel[engine.F32] = engine.BF16, engine.BF16
	for name, o := range map[string]enginetest.Options{
		"default": {Cache: engine.F16, Activations: byModel},
		"f16":     {Cache: engine.F16, Act: engine.F16, Activations: all(engine.F16)},
		"bf16":    {Cache: engine.BF16, Activations: all(engine.BF16)},
	} {
		t.Run(name, func(t *testing.T) {
			o.Numeric, o.RoundedWeights, o.Types = true, true, typesOfCUDA
			o.Routers = []engine.Type{engine.F32, engine.F16, engine.BF16}
			enginetest.Run(t, openCUDA, o)
		})
	}
}

// all maps every weight type to the type of activations that its GEMMs read.
func all(activations engine.Type) map[engine.Type]engine.Type {
	rounded := map[engine.Type]engine.Type{}
	for _, weights := range rules.WeightTypes() {
		rounded[weights] = activations
	}
	return rounded
}

func TestTheCUDAEngineKeepsTheContractOfVectors(t *testing.T) {
	if os.Getenv(cudaVariable) == "" {
		t.Skipf("%s is not set: it names libmillrace_cuda.so on a machine with a GPU", cudaVariable)
	}
	enginetest.RunVectors(t, openCUDA, enginetest.VectorOptions{
		Limited: func(t *testing.T, bytes uint64) engine.Device {
			t.Helper()
			return openCUDAOf(t, bytes)
		},
	})
	t.Run("the CPU's bytes", func(t *testing.T) {
		gpu, cpu := openCUDA(t), openCPU(t, "", 0)
		for seed := range uint64(20) {
			job := enginetest.RandomJob(5000 + seed)
			want, err := job.Train(cpu.(engine.Vectors), nil)
			require.NoError(t, err)
			got, err := job.Train(gpu.(engine.Vectors), nil)
			require.NoError(t, err)
			require.NoError(t, enginetest.Differ(got, want), "seed %d: %v", 5000+seed, job)
			// A training may resume from the state of the other engine.
			if len(want.Rounds) > 0 {
				job.Config.MaxIterations += 2
				want, err = job.Train(cpu.(engine.Vectors), got.State)
				require.NoError(t, err)
				got, err = job.Train(gpu.(engine.Vectors), got.State)
				require.NoError(t, err)
				require.NoError(t, enginetest.Differ(got, want), "seed %d, resumed", 5000+seed)
			}
		}
		require.NoError(t, gpu.Close())
		require.NoError(t, cpu.Close())
	})
}

// Keys and values of 8 bits move single logprobs too far for the bounds of the contract. This test
// bounds their cost for a text. The scenarios of sameness test that they change no bits between
// requests.
func TestCUDAEightBitCachePredictsAsWell(t *testing.T) {
	if os.Getenv(cudaVariable) == "" {
		t.Skipf("%s is not set: it names libmillrace_cuda.so on a machine with a GPU", cudaVariable)
	}
	enginetest.RunPerplexity(t, openCUDA, enginetest.Options{Numeric: true, Cache: engine.F8, Types: typesOfCUDA})
}

// typesOfCUDA has activations of either half type with every type of keys and values.
func typesOfCUDA(kv, act engine.Type) bool {
	return kv != engine.F32 && (act == 0 || act == engine.F16 || act == engine.BF16)
}
