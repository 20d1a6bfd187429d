package cuda

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// emulated is a program of GoogleTests that runs kernels on the device of tests/emulated.
type emulated struct {
	folders []string // of tests/emulated, whose headers replace those of kernels and src
	flags   []string
	sources []string // the runtime's is added
	objects []string
	filter  string // of GoogleTest; empty: all
}

// alikeEverywhere are sources whose objects every emulated program can link: neither their headers
// nor their macros differ between programs.
var alikeEverywhere = []string{
	"tests/emulated/runtime.cpp", "tests/emulated/experts/device.cpp", "kernels/gemm/weight.cpp", "kernels/gemm/repack.cu",
	"kernels/attention/prefill_plan.cpp", "kernels/check.cpp", "cpu/linear_size.cpp", "cpu/error.cpp",
}

func (e emulated) run(t *testing.T) {
	t.Helper()
	out, err := e.output(t)
	require.NoError(t, err, string(out))
}

// output builds and runs the program, and returns what it prints and how it ends.
func (e emulated) output(t *testing.T) ([]byte, error) {
	t.Helper()
	needGoogleTest(t)
	program := filepath.Join(t.TempDir(), "test")
	arguments := append([]string{"-o", program}, e.objects...)
	for _, source := range slices.Concat(e.sources, []string{"tests/emulated/runtime.cpp"}) {
		if slices.Contains(alikeEverywhere, source) {
			arguments = append(arguments, object(t, nil, nil, source))
		} else {
			arguments = append(arguments, object(t, e.folders, e.flags, source))
		}
	}
	build(t, append(arguments, "-lgtest", "-lgtest_main", "-lpthread")...)
	return exec.Command(program, "--gtest_filter="+cmp.Or(e.filter, "*")).CombinedOutput()
}

// The compiled sources, by their flags.
var (
	objectFolder   string
	objectsByFlags sync.Map // of func() (string, error)
)

func TestMain(m *testing.M) {
	var err error
	if objectFolder, err = os.MkdirTemp("", "millrace-emulated"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(objectFolder)
	os.Exit(code)
}

// object compiles a source for the emulated device, once for all programs that give it these flags.
// It does so with few optimisations, because most programs take longer to compile than to run.
func object(t *testing.T, folders, flags []string, source string) string {
	t.Helper()
	var arguments []string
	for _, folder := range folders {
		arguments = append(arguments, "-Itests/emulated/"+folder)
	}
	arguments = append(arguments,
		"-Itests/emulated", "-Itests", "-O1", "-ffp-contract=off", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE",
		"-Wno-unknown-pragmas", "-DMR_FREE_SPLITS=0")
	arguments = append(arguments, flags...)
	compile, _ := objectsByFlags.LoadOrStore(strings.Join(arguments, " ")+" "+source, sync.OnceValues(func() (string, error) {
		file, err := os.CreateTemp(objectFolder, "*.o")
		if err != nil {
			return "", err
		}
		_ = file.Close()
		out, err := compiler(slices.Concat(arguments, []string{"-c", "-o", file.Name(), "-x", "c++", source})...).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return file.Name(), err
	}))
	path, err := compile.(func() (string, error))()
	require.NoError(t, err)
	return path
}

// expertGemms is the grouped GEMMs' object. Shared memory of a kernel is laid out for a compute
// capability. Registers that a type does not use stay unset.
func expertGemms(t *testing.T) string {
	t.Helper()
	return object(t, []string{"experts"}, []string{
		"-D__CUDA_ARCH__=900", "-D__CUDA_ARCH_FEAT_SM90_ALL", "-DMR_HOPPER=1", "-Wno-missing-field-initializers",
		"-Wno-maybe-uninitialized", "-Wno-uninitialized",
	}, "tests/emulated/experts/gemm.cpp")
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
	emulated{sources: []string{
		"tests/emulated/repack/repack_test.cpp", "kernels/gemm/repack.cu", "kernels/gemm/weight.cpp", "cpu/linear_size.cpp",
	}}.run(t)
}

// TestEmulatedFragmentsHoldRoundedWeights unpacks weights of every quantised type as GEMM kernels do.
func TestEmulatedFragmentsHoldRoundedWeights(t *testing.T) {
	t.Parallel()
	emulated{sources: []string{
		"tests/emulated/fragment/fragment_test.cpp", "kernels/gemm/repack.cu", "kernels/gemm/weight.cpp", "cpu/linear_size.cpp",
	}}.run(t)
}

// TestEmulatedGemvMatchesFloat64 runs every GEMV kernel on an emulated device.
func TestEmulatedGemvMatchesFloat64(t *testing.T) {
	t.Parallel()
	emulated{
		flags: []string{"-D__CUDA_ARCH__=900", "-DMR_HOPPER=0"},
		sources: []string{
			"tests/emulated/gemv/gemv_test.cpp", "kernels/gemm/repack.cu", "kernels/gemm/weight.cpp", "cpu/linear_size.cpp",
		},
	}.run(t)
}

// TestEmulatedSearchMatchesBinary64 runs the certified search on an emulated device, with its
// tensor cores, pipeline and barriers.
func TestEmulatedSearchMatchesBinary64(t *testing.T) {
	t.Parallel()
	emulated{
		flags: []string{"-D__CUDA_ARCH_FEAT_SM90_ALL", "-DMR_HOPPER=1"},
		sources: []string{
			"tests/emulated/search/search_test.cpp", "kernels/vectors/search.cpp", "kernels/vectors/search_plan.cpp",
			"kernels/vectors/search_prepare.cu", "kernels/vectors/search_distance.cu", "kernels/vectors/search_f16.cu",
			"kernels/vectors/search_bf16.cu", "kernels/check.cpp", "cpu/error.cpp",
		},
	}.run(t)
}

// TestEmulatedAttentionMatchesFloat64 runs prefill attention by wgmma on an emulated device.
func TestEmulatedAttentionMatchesFloat64(t *testing.T) {
	t.Parallel()
	emulated{
		folders: []string{"attention"},
		flags:   []string{"-D__CUDA_ARCH_FEAT_SM90_ALL", "-DMR_HOPPER=1"},
		sources: []string{"tests/emulated/attention/attention_test.cpp", "kernels/attention/prefill_plan.cpp"},
	}.run(t)
}

// TestEmulatedWideHeadsMatchFloat64 runs decode attention, and prefill attention by mma, on an
// emulated device.
func TestEmulatedWideHeadsMatchFloat64(t *testing.T) {
	t.Parallel()
	sources := found(t, "kernels/attention/decode_*.cu", "kernels/attention/prefill_launch.cu", "kernels/attention/prefill_mma_*.cu")
	emulated{
		folders: []string{"attention"},
		flags:   []string{"-DMR_HOPPER=0"},
		sources: append(sources, "tests/emulated/attention/wide_test.cpp", "kernels/attention/prefill_plan.cpp", "kernels/begin.cu"),
	}.run(t)
}

// TestEmulatedBranchesEndAsInFloat64 runs the GoogleTests of branches' ends on an emulated device.
func TestEmulatedBranchesEndAsInFloat64(t *testing.T) {
	t.Parallel()
	emulated{
		folders: []string{"attention"},
		flags:   []string{"-DMR_HOPPER=0"},
		sources: []string{"tests/branch_test.cu", "kernels/branch.cu", "kernels/norm.cu"},
	}.run(t)
}

// TestEmulatedRowsOfHeadsAreNormedInParts runs the GoogleTests of norms over all heads on an emulated
// device.
func TestEmulatedRowsOfHeadsAreNormedInParts(t *testing.T) {
	t.Parallel()
	emulated{
		folders: []string{"experts"},
		flags:   []string{"-DMR_HOPPER=0"},
		sources: []string{"tests/qk_rows_test.cu", "kernels/qk_rows.cu"},
	}.run(t)
}

// TestEmulatedDivisionHasTheBitsOfOneGPU runs the shards and ranks of models that several emulated
// devices hold together, and of models with attention over latents on one. Dense GEMMs, attention and
// gathers are simple ones.
func TestEmulatedDivisionHasTheBitsOfOneGPU(t *testing.T) {
	t.Parallel()
	needGoogleTest(t)
	sources := []string{
		"tests/emulated/divided/divided_test.cpp", "tests/emulated/divided/stand_ins.cpp", "tests/emulated/experts/device.cpp",
		"kernels/check.cpp", "kernels/gemm/weight.cpp", "kernels/gemm/repack.cu",
	}
	for _, name := range []string{
		"activations", "division", "event_wait", "forward", "kinds", "ledger", "rank", "rank_attention", "rank_experts", "rank_latents",
		"rank_states", "shard", "transfer", "workspace",
	} {
		sources = append(sources, "src/"+name+".cpp")
	}
	for _, name := range []string{"error", "linear_size", "runner_config", "shape", "weights"} {
		sources = append(sources, "cpu/"+name+".cpp")
	}
	for _, name := range []string{
		"branch", "elementwise", "experts/choose", "experts/combine", "experts/plan", "experts/route", "experts/router", "latents", "norm",
		"qk_rows",
	} {
		sources = append(sources, "kernels/"+name+".cu")
	}
	emulated{
		folders: []string{"divided", "experts"},
		flags:   []string{"-DMR_HOPPER=0"},
		sources: sources,
		objects: []string{expertGemms(t)},
	}.run(t)
}

// TestEmulatedExpertsAreChosenAsInFloat64 runs the GoogleTests of routing, of the plan and of the sum
// over experts on an emulated device.
func TestEmulatedExpertsAreChosenAsInFloat64(t *testing.T) {
	t.Parallel()
	emulated{
		folders: []string{"experts"},
		flags:   []string{"-DMR_HOPPER=0"},
		sources: []string{
			"tests/experts_route_test.cu", "tests/experts_combine_test.cu", "tests/emulated/experts/device.cpp", "kernels/gemm/weight.cpp",
			"kernels/experts/router.cu", "kernels/experts/route.cu", "kernels/experts/plan.cu", "kernels/experts/choose.cu",
			"kernels/experts/combine.cu", "kernels/norm.cu",
		},
	}.run(t)
}

// TestExpertsInOrderOfArrivalAreCaught adds the experts of a row by its place among the rows, which
// stands for the order in which blocks end, and expects that a row then differs from itself alone.
func TestExpertsInOrderOfArrivalAreCaught(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("kernels/experts/combine.cu")
	require.NoError(t, err)
	const ascending, arrival = "first + e", "(first + e + static_cast<int32_t>(blockIdx.x)) % a.used"
	mutant := string(source)
	for _, read := range []string{"y + (%s) * a.y_stride", "weights[%s]", "ids[%s]"} {
		before := fmt.Sprintf(read, ascending)
		require.Equal(t, 1, strings.Count(mutant, before), before)
		mutant = strings.Replace(mutant, before, fmt.Sprintf(read, arrival), 1)
	}
	file := filepath.Join(t.TempDir(), "combine.cu")
	require.NoError(t, os.WriteFile(file, []byte(mutant), 0o600))
	out, err := emulated{
		folders: []string{"experts"},
		flags:   []string{"-DMR_HOPPER=0", "-I."},
		sources: []string{"tests/experts_combine_test.cu", file},
		filter:  "Combine.GivesARow*",
	}.output(t)
	require.Error(t, err)
	require.Contains(t, string(out), "row 6 of 7")
	require.Contains(t, string(out), "row 63 of 64 with all inputs")
	require.NotContains(t, string(out), "row 0 of")
}

// TestEmulatedExpertGemmsMatchFloat64 runs the GoogleTests of grouped GEMMs on an emulated device,
// for types that differ in how they are unpacked.
func TestEmulatedExpertGemmsMatchFloat64(t *testing.T) {
	t.Parallel()
	needGoogleTest(t)
	emulated{
		folders: []string{"experts"},
		flags:   []string{"-DMR_HOPPER=0"},
		sources: []string{
			"tests/experts_gemm_test.cu", "tests/experts_gemm_forms_test.cu", "tests/emulated/experts/device.cpp",
			"kernels/gemm/repack.cu", "kernels/gemm/weight.cpp", "kernels/experts/plan.cu", "kernels/experts/combine.cu",
			"cpu/linear_size.cpp",
		},
		objects: []string{expertGemms(t)},
		filter:  "*/BF16_bf16*:*/Q4_K_f16*:*/Q2_K_f16*:*/MXFP4_f16*:*/NVFP4_f16*-*Forms*/Q2_K_f16:*Forms*/NVFP4_f16",
	}.run(t)
}

// TestEmulatedRowsAddTheirSharedExpert runs the GoogleTests of the branch of a single row with a
// shared expert on an emulated device.
func TestEmulatedRowsAddTheirSharedExpert(t *testing.T) {
	t.Parallel()
	needGoogleTest(t)
	emulated{
		folders: []string{"experts"},
		flags:   []string{"-DMR_HOPPER=0"},
		sources: []string{
			"tests/experts_row_test.cu", "tests/emulated/experts/device.cpp", "kernels/gemm/repack.cu", "kernels/gemm/weight.cpp",
			"kernels/experts/choose.cu", "kernels/experts/combine.cu", "kernels/experts/router.cu", "cpu/linear_size.cpp",
		},
		objects: []string{expertGemms(t)},
		filter:  "*/BF16_bf16:*/Q4_K_f16:*/MXFP4_f16-*Overlaps*", // nothing overlaps there
	}.run(t)
}

// TestEmulatedStatesMatchFloat64 runs the GoogleTests of layers that carry a state on an emulated
// device.
func TestEmulatedStatesMatchFloat64(t *testing.T) {
	t.Parallel()
	emulated{
		folders: []string{"experts"},
		flags:   []string{"-DMR_HOPPER=0"},
		sources: []string{
			"tests/states_test.cu", "tests/emulated/experts/device.cpp", "kernels/states/convolve.cu", "kernels/states/delta.cu",
			"kernels/states/gate.cu",
		},
	}.run(t)
}

// TestEmulatedLatentsMatchFloat64 runs the GoogleTests of attention over a latent on an emulated
// device. 128 heads, and long keys of most shapes, are for a GPU.
func TestEmulatedLatentsMatchFloat64(t *testing.T) {
	t.Parallel()
	emulated{
		folders: []string{"attention"},
		flags:   []string{"-DMR_HOPPER=0"},
		sources: append(found(t, "kernels/attention/decode_*.cu"), "tests/latent_test.cu", "tests/emulated/experts/device.cpp",
			"kernels/attention/prefill_plan.cpp", "kernels/attention/latent_decode.cu", "kernels/attention/latent_prefill.cu",
			"kernels/latents.cu", "kernels/begin.cu", "kernels/experts/plan.cu"),
		filter: "LatentWidths*:FinishLatent*:PlanHeads*:PlaceHeads*:*OneToken*:*TheEndOfATile*:*SecondTile*:" +
			"*AfterAPrefix*:*AcrossChunks/1_*:*AcrossChunks/16_512*:*AcrossChunks/20_*:*AcrossTiles/7_*:*AcrossTiles/16_512*:" +
			"*AcrossGroups/1_16*:*AcrossPieces/1_16*-*128_512*",
	}.run(t)
}
