package cuda

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// hostTests maps the engine's tests that need neither a GPU nor CUDA to the sources that they test.
var hostTests = map[string][]string{
	"tests/prefill_plan_test.cpp":       {"kernels/attention/prefill_plan.cpp"},
	"tests/engine_copy_groups_test.cpp": {"src/copy_groups.cpp"},
	"tests/engine_division_test.cpp":    {"src/division.cpp", "cpu/error.cpp"},
	"tests/engine_fair_mutex_test.cpp":  {},
	// The emulated device has the types of CUDA that the kernels' headers name.
	"tests/engine_step_chains_test.cpp": {"-Itests/emulated", "src/step_chains.cpp"},
	"tests/gemm_round_times_test.cpp":   {"-Itests/emulated"},
}

func TestHostProgramsPass(t *testing.T) {
	needGoogleTest(t)
	for test, sources := range hostTests {
		t.Run(filepath.Base(test), func(t *testing.T) {
			t.Parallel()
			program := filepath.Join(t.TempDir(), "test")
			build(t, append([]string{"-o", program, test, "-lgtest", "-lgtest_main", "-lpthread"}, sources...)...)
			out, err := exec.Command(program).CombinedOutput()
			require.NoError(t, err, string(out))
		})
	}
}

// TestNVMLProgramPasses runs the test of the management library's reader against a fake library.
func TestNVMLProgramPasses(t *testing.T) {
	needGoogleTest(t)
	dir := t.TempDir()
	library, program := filepath.Join(dir, "libnvidia-ml.so.1"), filepath.Join(dir, "nvml_test")
	build(t, "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", library, "tests/interpose/nvml.cpp", "-lpthread")
	// The path to it goes before LD_LIBRARY_PATH, where the driver's may be.
	build(t, "-o", program, "tests/nvml_test.cpp", "src/nvml.cpp", library, "-lgtest", "-lgtest_main", "-lpthread", "-ldl",
		"-Wl,--disable-new-dtags", "-Wl,-rpath,"+dir)
	out, err := exec.Command(program).CombinedOutput()
	require.NoError(t, err, string(out))
}

// TestEmulatedTrainerMatchesCPU runs the device's trainer with its kernels on an emulated device,
// and compares it with the CPU engine, whose objects cgo has compiled.
func TestEmulatedTrainerMatchesCPU(t *testing.T) {
	t.Parallel()
	needGoogleTest(t)
	dir := t.TempDir()
	exported, err := exec.Command("go", "list", "-export", "-f", "{{.Export}}", "./cpu").Output()
	require.NoError(t, err)
	extract := exec.Command("ar", "x", strings.TrimSpace(string(exported)))
	extract.Dir = dir
	out, err := extract.CombinedOutput()
	require.NoError(t, err, string(out))
	objects, err := filepath.Glob(filepath.Join(dir, "_x*")) // cgo's name for the objects of C and C++ sources
	require.NoError(t, err)
	library, program := filepath.Join(dir, "libmillrace_cpu.a"), filepath.Join(dir, "test")
	out, err = exec.Command("ar", append([]string{"rcs", library}, objects...)...).CombinedOutput()
	require.NoError(t, err, string(out))

	arguments := []string{"-ffp-contract=off", "-U_FORTIFY_SOURCE", "-Wno-unknown-pragmas", "-o", program}
	arguments = slices.Insert(arguments, 0, "-Itests/emulated") // before the folders of the originals
	for _, pattern := range []string{
		"kernels/vectors/training_*.cu", "src/vectors/training*.cpp", "src/vectors/trainer.cpp",
		"src/ledger.cpp", "src/transfer.cpp", "src/event_wait.cpp", "kernels/check.cpp", "tests/emulated/*.cpp",
	} {
		sources, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, sources, pattern)
		for _, source := range sources {
			if filepath.Ext(source) == ".cu" {
				arguments = append(arguments, "-x", "c++", source, "-x", "none")
			} else {
				arguments = append(arguments, source)
			}
		}
	}
	build(t, append(arguments, library, "-lgtest", "-lgtest_main", "-lpthread")...)
	out, err = exec.Command(program).CombinedOutput()
	require.NoError(t, err, string(out))
}

// TestEmulatedRepackRestoresFiles packs and restores weights of every type on an emulated device.
func TestEmulatedRepackRestoresFiles(t *testing.T) {
	t.Parallel()
	needGoogleTest(t)
	program := filepath.Join(t.TempDir(), "test")
	build(t, "-Itests/emulated", "-ffp-contract=off", "-fno-strict-aliasing", "-Wno-unknown-pragmas", "-o", program,
		"tests/emulated/repack/repack_test.cpp", "tests/emulated/runtime.cpp", "kernels/gemm/weight.cpp", "cpu/linear_size.cpp",
		"-x", "c++", "kernels/gemm/repack.cu", "-x", "none", "-lgtest", "-lgtest_main", "-lpthread")
	out, err := exec.Command(program).CombinedOutput()
	require.NoError(t, err, string(out))
}

// TestEmulatedFragmentsHoldRoundedWeights unpacks weights of every quantised type as GEMM kernels do.
func TestEmulatedFragmentsHoldRoundedWeights(t *testing.T) {
	t.Parallel()
	needGoogleTest(t)
	program := filepath.Join(t.TempDir(), "test")
	build(t, "-Itests/emulated", "-ffp-contract=off", "-fno-strict-aliasing", "-Wno-unknown-pragmas", "-o", program,
		"tests/emulated/fragment/fragment_test.cpp", "tests/emulated/runtime.cpp", "kernels/gemm/weight.cpp", "cpu/linear_size.cpp",
		"-x", "c++", "kernels/gemm/repack.cu", "-x", "none", "-lgtest", "-lgtest_main", "-lpthread")
	out, err := exec.Command(program).CombinedOutput()
	require.NoError(t, err, string(out))
}

// TestEmulatedGemvMatchesFloat64 runs every GEMV kernel on an emulated device.
func TestEmulatedGemvMatchesFloat64(t *testing.T) {
	t.Parallel()
	needGoogleTest(t)
	program := filepath.Join(t.TempDir(), "test")
	build(t, "-Itests/emulated", "-ffp-contract=off", "-fno-strict-aliasing", "-O1", "-D__CUDA_ARCH__=900", "-DMR_HOPPER=0",
		"-DMR_FREE_SPLITS=0", "-Wno-unknown-pragmas", "-o", program, "tests/emulated/gemv/gemv_test.cpp", "tests/emulated/runtime.cpp",
		"kernels/gemm/weight.cpp", "cpu/linear_size.cpp", "-x", "c++", "kernels/gemm/repack.cu", "-x", "none", "-lgtest", "-lgtest_main",
		"-lpthread")
	out, err := exec.Command(program).CombinedOutput()
	require.NoError(t, err, string(out))
}

// TestEmulatedSearchMatchesBinary64 runs the certified search on an emulated device, with its
// tensor cores, pipeline and barriers.
func TestEmulatedSearchMatchesBinary64(t *testing.T) {
	t.Parallel()
	needGoogleTest(t)
	program := filepath.Join(t.TempDir(), "test")
	arguments := []string{
		"-Itests/emulated", "-ffp-contract=off", "-D__CUDA_ARCH_FEAT_SM90_ALL", "-DMR_HOPPER=1", "-Wno-unknown-pragmas", "-o", program,
		"tests/emulated/search/search_test.cpp", "tests/emulated/runtime.cpp", "kernels/vectors/search.cpp", "kernels/vectors/search_plan.cpp",
		"kernels/check.cpp", "cpu/error.cpp", "-x", "c++",
	}
	for _, name := range []string{"prepare", "distance", "f16", "bf16"} {
		arguments = append(arguments, "kernels/vectors/search_"+name+".cu")
	}
	build(t, append(arguments, "-x", "none", "-lgtest", "-lgtest_main", "-lpthread")...)
	out, err := exec.Command(program).CombinedOutput()
	require.NoError(t, err, string(out))
}

// TestEmulatedAttentionMatchesFloat64 runs prefill attention by wgmma on an emulated device.
func TestEmulatedAttentionMatchesFloat64(t *testing.T) {
	t.Parallel()
	needGoogleTest(t)
	program := filepath.Join(t.TempDir(), "test")
	build(t, "-Itests/emulated/attention", "-Itests/emulated", "-ffp-contract=off", "-fno-strict-aliasing", "-D__CUDA_ARCH_FEAT_SM90_ALL",
		"-DMR_HOPPER=1", "-DMR_FREE_SPLITS=0", "-Wno-unknown-pragmas", "-o", program, "tests/emulated/attention/attention_test.cpp",
		"tests/emulated/runtime.cpp", "kernels/attention/prefill_plan.cpp", "-lgtest", "-lgtest_main", "-lpthread")
	out, err := exec.Command(program).CombinedOutput()
	require.NoError(t, err, string(out))
}

// TestEmulatedWideHeadsMatchFloat64 runs decode attention, and prefill attention by mma, on an
// emulated device.
func TestEmulatedWideHeadsMatchFloat64(t *testing.T) {
	t.Parallel()
	needGoogleTest(t)
	program := filepath.Join(t.TempDir(), "test")
	kernels := found(t, "kernels/attention/decode_*.cu", "kernels/attention/prefill_launch.cu", "kernels/attention/prefill_mma_*.cu")
	build(t, slices.Concat([]string{
		"-Itests/emulated/attention", "-Itests/emulated", "-ffp-contract=off", "-fno-strict-aliasing", "-O1",
		"-DMR_HOPPER=0", "-DMR_FREE_SPLITS=0", "-Wno-unknown-pragmas", "-o", program, "tests/emulated/attention/wide_test.cpp",
		"tests/emulated/runtime.cpp", "kernels/attention/prefill_plan.cpp", "-x", "c++", "kernels/begin.cu",
	}, kernels, []string{"-x", "none", "-lgtest", "-lgtest_main", "-lpthread"})...)
	out, err := exec.Command(program).CombinedOutput()
	require.NoError(t, err, string(out))
}

// TestEmulatedBranchesEndAsInFloat64 runs the GoogleTests of what ends a branch on an emulated device.
func TestEmulatedBranchesEndAsInFloat64(t *testing.T) {
	t.Parallel()
	needGoogleTest(t)
	program := filepath.Join(t.TempDir(), "test")
	build(t, "-Itests/emulated/attention", "-Itests/emulated", "-Itests", "-ffp-contract=off", "-fno-strict-aliasing", "-O1",
		"-DMR_HOPPER=0", "-DMR_FREE_SPLITS=0", "-Wno-unknown-pragmas", "-o", program, "tests/emulated/runtime.cpp",
		"-x", "c++", "kernels/branch.cu", "kernels/norm.cu", "tests/branch_test.cu", "-x", "none", "-lgtest", "-lgtest_main", "-lpthread")
	out, err := exec.Command(program).CombinedOutput()
	require.NoError(t, err, string(out))
}

// TestEmulatedRowsOfHeadsAreNormedInParts runs the GoogleTests of norms over all heads on an emulated
// device.
func TestEmulatedRowsOfHeadsAreNormedInParts(t *testing.T) {
	t.Parallel()
	needGoogleTest(t)
	program := filepath.Join(t.TempDir(), "test")
	build(t, "-Itests/emulated/experts", "-Itests/emulated", "-Itests", "-ffp-contract=off", "-fno-strict-aliasing", "-O1",
		"-DMR_HOPPER=0", "-DMR_FREE_SPLITS=0", "-Wno-unknown-pragmas", "-o", program, "tests/emulated/runtime.cpp",
		"-x", "c++", "kernels/qk_rows.cu", "tests/qk_rows_test.cu", "-x", "none", "-lgtest", "-lgtest_main", "-lpthread")
	out, err := exec.Command(program).CombinedOutput()
	require.NoError(t, err, string(out))
}

// TestEmulatedDivisionHasTheBitsOfOneGPU runs the shards and ranks of models that several emulated
// devices hold together, and of models with attention over latents on one. Dense GEMMs, attention and
// gathers are simple ones.
func TestEmulatedDivisionHasTheBitsOfOneGPU(t *testing.T) {
	t.Parallel()
	needGoogleTest(t)
	dir := t.TempDir()
	program, kernels := filepath.Join(dir, "test"), filepath.Join(dir, "kernels.o")
	flags := []string{
		"-Itests/emulated/divided", "-Itests/emulated/experts", "-Itests/emulated", "-Itests", "-ffp-contract=off",
		"-fno-strict-aliasing", "-O1", "-DMR_FREE_SPLITS=0", "-Wno-unknown-pragmas",
	}
	build(t, slices.Concat(flags, []string{
		"-D__CUDA_ARCH__=900", "-D__CUDA_ARCH_FEAT_SM90_ALL", "-DMR_HOPPER=1", "-Wno-missing-field-initializers",
		"-Wno-maybe-uninitialized", "-Wno-uninitialized", "-c", "-o", kernels, "tests/emulated/experts/gemm.cpp",
	})...)
	arguments := slices.Concat(flags, []string{
		"-DMR_HOPPER=0", "-o", program, kernels, "tests/emulated/divided/divided_test.cpp", "tests/emulated/divided/stand_ins.cpp",
		"tests/emulated/runtime.cpp", "tests/emulated/experts/device.cpp", "kernels/check.cpp", "kernels/gemm/weight.cpp",
	})
	for _, name := range []string{
		"activations", "division", "event_wait", "forward", "kinds", "ledger", "rank", "rank_attention", "rank_experts", "rank_latents",
		"rank_states", "shard", "transfer", "workspace",
	} {
		arguments = append(arguments, "src/"+name+".cpp")
	}
	for _, name := range []string{"error", "linear_size", "runner_config", "shape", "weights"} {
		arguments = append(arguments, "cpu/"+name+".cpp")
	}
	arguments = append(arguments, "-x", "c++")
	for _, name := range []string{
		"branch", "elementwise", "experts/choose", "experts/combine", "experts/plan", "experts/route", "experts/router", "gemm/repack",
		"latents", "norm", "qk_rows",
	} {
		arguments = append(arguments, "kernels/"+name+".cu")
	}
	build(t, append(arguments, "-x", "none", "-lgtest", "-lgtest_main", "-lpthread")...)
	out, err := exec.Command(program).CombinedOutput()
	require.NoError(t, err, string(out))
}

func needGoogleTest(t *testing.T) {
	t.Helper()
	if err := exec.Command("g++", "-x", "c++", "-fsyntax-only", "-include", "gtest/gtest.h", os.DevNull).Run(); err != nil {
		t.Skip("no GoogleTest: apt install libgtest-dev")
	}
}

// TestEmulatedExpertsAreChosenAsInFloat64 runs the GoogleTests of routing, of the plan and of the sum
// over experts on an emulated device.
func TestEmulatedExpertsAreChosenAsInFloat64(t *testing.T) {
	t.Parallel()
	needGoogleTest(t)
	program := filepath.Join(t.TempDir(), "test")
	build(t, "-Itests/emulated/experts", "-Itests/emulated", "-Itests", "-ffp-contract=off", "-fno-strict-aliasing",
		"-DMR_HOPPER=0", "-DMR_FREE_SPLITS=0", "-Wno-unknown-pragmas", "-o", program, "tests/emulated/runtime.cpp",
		"tests/emulated/experts/device.cpp", "kernels/gemm/weight.cpp", "-x", "c++", "kernels/experts/router.cu", "kernels/experts/route.cu",
		"kernels/experts/plan.cu", "kernels/experts/choose.cu", "kernels/experts/combine.cu", "kernels/norm.cu",
		"tests/experts_route_test.cu", "tests/experts_combine_test.cu", "-x", "none", "-lgtest", "-lgtest_main", "-lpthread")
	out, err := exec.Command(program).CombinedOutput()
	require.NoError(t, err, string(out))
}

// TestEmulatedExpertGemmsMatchFloat64 runs the GoogleTests of the grouped GEMMs on an emulated device,
// for types that differ in how they are unpacked.
func TestEmulatedExpertGemmsMatchFloat64(t *testing.T) {
	t.Parallel()
	needGoogleTest(t)
	dir := t.TempDir()
	program, kernels := filepath.Join(dir, "test"), filepath.Join(dir, "kernels.o")
	flags := []string{
		"-Itests/emulated/experts", "-Itests/emulated", "-Itests", "-ffp-contract=off", "-fno-strict-aliasing",
		"-DMR_FREE_SPLITS=0", "-Wno-unknown-pragmas",
	}
	// The shared memory of a kernel is laid out for a compute capability. Registers that a type does not use
	// stay unset.
	build(t, slices.Concat(flags, []string{
		"-D__CUDA_ARCH__=900", "-D__CUDA_ARCH_FEAT_SM90_ALL", "-DMR_HOPPER=1", "-Wno-missing-field-initializers",
		"-Wno-maybe-uninitialized", "-Wno-uninitialized", "-c", "-o", kernels, "tests/emulated/experts/gemm.cpp",
	})...)
	build(t, slices.Concat(flags, []string{
		"-DMR_HOPPER=0", "-o", program, kernels, "tests/emulated/runtime.cpp", "tests/emulated/experts/device.cpp", "kernels/gemm/weight.cpp",
		"cpu/linear_size.cpp", "-x", "c++", "kernels/gemm/repack.cu", "kernels/experts/plan.cu",
		"kernels/experts/combine.cu", "tests/experts_gemm_test.cu", "-x", "none",
		"-lgtest", "-lgtest_main", "-lpthread",
	})...)
	out, err := exec.Command(program, "--gtest_filter=*/BF16_bf16*:*/Q4_K_f16*:*/Q2_K_f16*:*/MXFP4_f16*:*/NVFP4_f16*").CombinedOutput()
	require.NoError(t, err, string(out))
}

// TestEmulatedStatesMatchFloat64 runs the GoogleTests of layers that carry a state on an emulated
// device.
func TestEmulatedStatesMatchFloat64(t *testing.T) {
	t.Parallel()
	needGoogleTest(t)
	program := filepath.Join(t.TempDir(), "test")
	build(t, "-Itests/emulated/experts", "-Itests/emulated", "-Itests", "-ffp-contract=off", "-fno-strict-aliasing",
		"-DMR_HOPPER=0", "-DMR_FREE_SPLITS=0", "-Wno-unknown-pragmas", "-o", program, "tests/emulated/runtime.cpp",
		"tests/emulated/experts/device.cpp", "-x", "c++", "kernels/states/convolve.cu", "kernels/states/delta.cu",
		"kernels/states/gate.cu", "tests/states_test.cu", "-x", "none", "-lgtest", "-lgtest_main", "-lpthread")
	out, err := exec.Command(program).CombinedOutput()
	require.NoError(t, err, string(out))
}

// TestEmulatedLatentsMatchFloat64 runs the GoogleTests of attention over a latent on an emulated
// device. 128 heads, and long keys of most shapes, are for a GPU.
func TestEmulatedLatentsMatchFloat64(t *testing.T) {
	t.Parallel()
	needGoogleTest(t)
	program := filepath.Join(t.TempDir(), "test")
	build(t, slices.Concat([]string{
		"-Itests/emulated/attention", "-Itests/emulated", "-Itests", "-ffp-contract=off", "-fno-strict-aliasing", "-O1",
		"-DMR_HOPPER=0", "-DMR_FREE_SPLITS=0", "-Wno-unknown-pragmas", "-o", program, "tests/emulated/runtime.cpp",
		"tests/emulated/experts/device.cpp", "kernels/attention/prefill_plan.cpp", "-x", "c++",
		"kernels/attention/latent_decode.cu", "kernels/attention/latent_prefill.cu", "kernels/latents.cu", "kernels/begin.cu",
		"kernels/experts/plan.cu", "tests/latent_test.cu",
	}, found(t, "kernels/attention/decode_*.cu"), []string{"-x", "none", "-lgtest", "-lgtest_main", "-lpthread"})...)
	const some = "--gtest_filter=LatentWidths*:FinishLatent*:PlanHeads*:PlaceHeads*:*OneToken*:*TheEndOfATile*:*SecondTile*:" +
		"*AfterAPrefix*:*AcrossChunks/1_*:*AcrossChunks/16_512*:*AcrossChunks/20_*:*AcrossTiles/7_*:*AcrossTiles/16_512*:" +
		"*AcrossGroups/1_16*:*AcrossPieces/1_16*-*128_512*"
	out, err := exec.Command(program, some).CombinedOutput()
	require.NoError(t, err, string(out))
}

func build(t *testing.T, arguments ...string) {
	t.Helper()
	flags := []string{"-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror"}
	out, err := exec.Command("g++", append(append(flags, arguments...), "-I.", "-Iinclude")...).CombinedOutput()
	require.NoError(t, err, string(out))
}
