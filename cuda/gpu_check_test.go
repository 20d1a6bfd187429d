package cuda

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/synth"
)

// TestLogprobsUnitTestsPass runs the Python unit tests of gpu-check's stages transformers and families.
func TestLogprobsUnitTestsPass(t *testing.T) {
	for _, interpreter := range []string{"python3", "/usr/bin/python3"} {
		if exec.Command(interpreter, "-c", "import numpy").Run() != nil {
			continue
		}
		tests := exec.Command(interpreter, "-m", "unittest", "discover", "-s", "gpu-check/logprobs", "-p", "*_test.py")
		tests.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
		out, err := tests.CombinedOutput()
		require.NoError(t, err, string(out))
		require.NotContains(t, string(out), "Ran 0 tests")
		return
	}
	t.Skip("no python3 with numpy: apt install python3-numpy")
}

// TestFamiliesHaveEveryArchitecture requires that gpu-check's stage families compares a small model of
// every architecture that loads.
func TestFamiliesHaveEveryArchitecture(t *testing.T) {
	out, err := exec.Command("bash", "-c", `source gpu-check/families.sh && echo "$FAMILIES"`).Output()
	require.NoError(t, err)
	compared := map[string]bool{}
	for each := range strings.FieldsSeq(string(out)) {
		name, _, _ := strings.Cut(each, ":")
		shape, ok := synth.Small(strings.TrimSuffix(name, "-short"))
		require.True(t, ok, "the stage families has %s, which is no small model", name)
		compared[shape.Architecture] = true
	}
	require.ElementsMatch(t, arch.Architectures(), slices.Collect(maps.Keys(compared)))
}

// TestInvarianceRequiresThatFreeBuildIsCaught runs gpu-check's stage invariance with scripts
// instead of its programs.
func TestInvarianceRequiresThatFreeBuildIsCaught(t *testing.T) {
	const differs = "seed 7 (crowd, heads of 64, F16: 2 actors, chunk 33; run it again with go test -sametest.seed=7): actor 1, stranger, " +
		"output 0: generated token 3: alone 5 at position 9, -1 (bf800000), rank 0, here 5 at position 9, -1 (bf800001), rank 0"
	for name, tc := range map[string]struct {
		capability string
		status     int    // of the scenarios
		prints     string // what they print
		want       string // row of the table
		fails      bool
	}{
		"differing bits pass": {"9.0", 1, differs, "ok the build that is free is caught by seed 7", false},
		"equal bits fail":     {"9.0", 0, "PASS", "FAIL no scenario catches the build that is free", true},
		"another failure fails": {
			"9.0", 1, "seed 7 (crowd; run it again with x7): alone, at position 9: the device is lost",
			"FAIL the build that is free fails otherwise than by its bits", true,
		},
		"without wgmma there is nothing to catch": {"8.0", 1, "", "skip without wgmma", false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			script := func(path, text string) {
				require.NoError(t, os.WriteFile(filepath.Join(dir, path), []byte("#!/bin/bash\n"+text), 0o755))
			}
			script("sametest.test", fmt.Sprintf("[[ $MILLRACE_TEST_CUDA_ENGINE == %s/cuda/free ]] || exit 3\necho '%s'\nexit %d\n",
				dir, tc.prints, tc.status))
			script("millrace-bench", "for kind in prefill decode; do for batch in 1 64 128 256; do echo $kind $batch 100; done; done\n")
			script("stage", `
work=$1 bin=$1 models=$1 out=$1/cuda gpu_capability=$2
row() { echo "$1 $3"; }
cmake() { [[ "$*" == "--build $out --target millrace_free" ]]; }
image() { echo "${1/90/90a}"; }
source gpu-check/invariance.sh
invariance
`)
			out, err := exec.Command("bash", "-u", filepath.Join(dir, "stage"), dir, tc.capability).CombinedOutput()
			require.NoError(t, err, string(out))
			require.Contains(t, string(out), tc.want)
			require.Contains(t, string(out), "ok decode, 256 x 128: 100 tokens/s, and 100 of the build that is free: 0.0 % is the cost")
			if tc.fails {
				require.Contains(t, string(out), "FAIL")
			} else {
				require.NotContains(t, string(out), "FAIL")
			}
		})
	}
}

// TestRowsOfFiguresHaveTheClockOfTheSMs runs gpu-check's stage figures with scripts instead of
// nvidia-smi and the benchmark.
func TestRowsOfFiguresHaveTheClockOfTheSMs(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, folder := range []string{"bin", "fake", "cuda"} {
		require.NoError(t, os.Mkdir(filepath.Join(root, folder), 0o700))
	}
	out, err := exec.Command("cp", "-r", "gpu-check", "gpu-check.sh", "CMakeLists.txt", filepath.Join(root, "cuda")).CombinedOutput()
	require.NoError(t, err, string(out))
	script := func(path, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(root, path), []byte("#!/bin/bash\n"+text), 0o700))
	}
	script("bin/millrace-bench", "sleep 0.5\n")
	script("fake/nvidia-smi", `case "$*" in
*clocks.sm*) while printf '1980, 97\n1500, 60\n345, 0\n[N/A], [N/A]\n'; do sleep 0.1; done ;;
*compute_mode*) echo Default ;;
*) echo A GPU ;;
esac
`)
	check := exec.Command("bash", filepath.Join(root, "cuda", "gpu-check.sh"), "figures")
	check.Env = append(os.Environ(), "PATH="+filepath.Join(root, "fake")+":"+os.Getenv("PATH"), "WORK="+filepath.Join(root, "work"))
	out, err = check.CombinedOutput()
	require.NoError(t, err, string(out))
	for _, each := range []string{"ops", "memory"} {
		require.Regexp(t, `(?m)^ok +figures .*millrace-bench `+each+`, SMs at 1500 MHz \(1500..1980\)$`, string(out))
	}
	left, err := filepath.Glob(filepath.Join(root, "work", "clocks*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestStagesThatCompareShareTheGPU runs gpu-check's stages tests, conformance, alone and faults
// with scripts instead of the test programs. The first two run side by side as clients of the
// multi-process service, where the host has what they need, and otherwise one program at a time, as
// the others always do.
func TestStagesThatCompareShareTheGPU(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		mode, memory, service string // of the GPU, of the service
		shared                bool
	}{
		"with the service":             {"Default", "143771", "starts", true},
		"a GPU in exclusive mode":      {"Exclusive_Process", "143771", "starts", false},
		"a small GPU":                  {"Default", "24576", "starts", false},
		"a service that does not run":  {"Default", "143771", "fails", false},
		"a service that gives no list": {"Default", "143771", "is silent", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			for _, folder := range []string{"bin", "fake", "cuda/tests", "work/cuda"} {
				require.NoError(t, os.MkdirAll(filepath.Join(root, folder), 0o700))
			}
			out, err := exec.Command("cp", "-r", "gpu-check", "gpu-check.sh", "CMakeLists.txt", filepath.Join(root, "cuda")).CombinedOutput()
			require.NoError(t, err, string(out))
			script := func(path, text string) {
				require.NoError(t, os.WriteFile(filepath.Join(root, path), []byte("#!/bin/bash\ncd "+root+"\n"+text), 0o700))
			}
			script("fake/nvidia-smi", fmt.Sprintf(`case "$*" in
*compute_mode*) echo %s ;;
*memory.total*,nounits*) echo %s ;;
*) exit 1 ;;
esac
`, tc.mode, tc.memory))
			script("fake/nvcc", "exit 1\n")
			script("fake/nvidia-cuda-mps-control", fmt.Sprintf(`service='%s'
[[ -z ${CUDA_VISIBLE_DEVICES:-} || $1 != -d ]] || exit 1
if [[ ${1:-} == -d ]]; then [[ $service != fails ]] && echo "$CUDA_MPS_PIPE_DIRECTORY" >served; exit; fi
read -r asked
echo "$asked" >>asked
[[ $asked != get_server_list || $service == starts ]]
`, tc.service))
			const passed = "echo '[  PASSED  ] 3 tests.'\n"
			const only = "mkdir busy || exit 1; sleep 0.1; rmdir busy\n"
			compared, alone := only, only+`[[ -z ${CUDA_MPS_PIPE_DIRECTORY:-} ]] || exit 1`+"\n"
			meets := compared
			if tc.shared {
				compared = `[[ $CUDA_MPS_PIPE_DIRECTORY == "$(<served)" ]] || exit 1` + "\n"
				// Ends only if a program of each stage runs meanwhile.
				meets = compared + "echo now >>started\n" +
					`for i in {1..200}; do (($(grep -c . started) < 2)) || break; sleep 0.1; done; (($(grep -c . started) == 2)) || exit 1` + "\n"
			}
			script("work/cuda/cuda_capi_test", "")
			script("bin/native.test", meets+"echo '--- PASS: TestTheCUDAEngine'\n")
			script("bin/millrace-worker", "")
			require.NoError(t, os.WriteFile(filepath.Join(root, "started"), nil, 0o600))
			for name, text := range map[string]string{
				"one":           meets + passed,
				"two":           compared + "echo '[  PASSED  ] 2 tests.'; echo '[  SKIPPED ] 1 test, listed below:'\n",
				"bad":           compared + passed + "exit 1\n",
				"none":          compared + "echo 'Running 0 tests'\n",
				"engine_config": compared + "echo '[  PASSED  ] 1 test.'\n",
				"engine_memory": alone + passed, "engine_runner": alone + passed, "gather": alone + passed, "engine_divided": alone + passed,
				"engine_divided_experts": alone + passed, "engine_hidden": alone + passed, "engine_two_devices": alone + passed,
				"engine_fault": alone + passed, "engine_fault_step": alone + passed, "engine_fault_memory": alone + passed,
				"engine_fault_model": alone + passed, "engine_fault_divided": alone + passed,
			} {
				script("work/cuda/cuda_"+name+"_test", text)
				ending := ".cu"
				if strings.HasPrefix(name, "engine") {
					ending = ".cpp"
				}
				require.NoError(t, os.WriteFile(filepath.Join(root, "cuda", "tests", name+"_test"+ending), nil, 0o600))
			}
			check := exec.Command("bash", filepath.Join(root, "cuda", "gpu-check.sh"), "tests", "conformance", "alone", "faults")
			check.Env = append(os.Environ(), "PATH="+filepath.Join(root, "fake")+":"+os.Getenv("PATH"), "WORK="+filepath.Join(root, "work"), "TESTS=8",
				"CUDA_VISIBLE_DEVICES=0", "TMPDIR="+root)
			out, err = check.CombinedOutput()
			require.Error(t, err, "a program has failed")
			for _, row := range []string{
				`ok +tests .* C program over the ABI`, `ok +tests .* cuda_one_test`, `ok +tests .* cuda_two_test`,
				`skip +tests .* cuda_two_test: 1 tests: see .*`, `FAIL +tests .* cuda_bad_test: see .*`,
				`FAIL +tests .* cuda_none_test: no test passed: see .*`, `ok +tests .* 6 GoogleTests of 3 programs passed`,
				`ok +conformance .* 1 checks passed`, `ok +alone .* 36 GoogleTests of 12 programs passed`,
				`ok +faults .* 12 GoogleTests of 4 programs passed`,
			} {
				require.Regexp(t, `(?m)^`+row+`$`, string(out))
			}
			require.NotContains(t, string(out), "not built")
			asked, err := os.ReadFile(filepath.Join(root, "asked"))
			if tc.shared || tc.service == "is silent" {
				require.NoError(t, err)
				require.Equal(t, "get_server_list\nquit -t 30\n", string(asked))
			}
			if tc.mode != "Default" || tc.memory == "24576" {
				require.ErrorIs(t, err, os.ErrNotExist, "no service was wanted")
			}
			left, err := filepath.Glob(filepath.Join(root, "tmp.*"))
			require.NoError(t, err)
			require.Empty(t, left, "the folder of the service")
		})
	}
}

// TestProgramsOfSeveralAndOfLostGPUsRunAlone requires gpu-check to keep test programs with gathers
// between GPUs, and those that lose one, away from others.
func TestProgramsOfSeveralAndOfLostGPUsRunAlone(t *testing.T) {
	sources, err := filepath.Glob("tests/*_test.cpp")
	require.NoError(t, err)
	alone := strings.Fields(checked(t, "", `echo $needs_alone`))
	found := 0
	for _, source := range sources {
		text, err := os.ReadFile(source)
		require.NoError(t, err)
		if strings.Contains(string(text), `#include "tests/engine_together.h"`) || strings.Contains(string(text), "DeathTest") {
			found++
			require.Contains(t, alone, "cuda_"+strings.TrimSuffix(filepath.Base(source), ".cpp"))
		}
	}
	require.NotZero(t, found)
}

// checked runs shell lines with gpu-check's files sourced, for a fake GPU that has a file of
// floors, and returns the output.
func checked(t *testing.T, floors, lines string) string {
	t.Helper()
	root, work := t.TempDir(), t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(root, "bench", "floors"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(root, "bench", "floors", "some-gpu.txt"), []byte(floors), 0o600))
	parts, err := filepath.Abs("gpu-check")
	require.NoError(t, err)
	shell := exec.Command("bash", "-c", `set -uo pipefail
row() { echo "$1 $2 $3"; }
for part in "$PARTS"/*.sh; do source "$part" || exit 1; done
`+lines)
	shell.Dir = root
	shell.Env = append(os.Environ(), "PARTS="+parts, "work="+work, "out="+work, "bin="+work, "models="+work, "gpu_name=Some GPU",
		"gpu_capability=9.0")
	out, err := shell.CombinedOutput()
	require.NoError(t, err, string(out))
	return string(out)
}

const gathers = `cat >"$work/log" <<'.'
copies from GPU 0 to GPU 1: 370 GB/s
     message    halves us     whole us  of roof
       8 KiB         2.04         2.31       1%
      64 KiB         6.50         2.90       6%
.
gather_figures "$work/log" >"$work/two.txt"
`

func TestGathersAreHeldToFloors(t *testing.T) {
	const hold = "ok two the floors of gathers in bench/floors/some-gpu.txt hold\n"
	for name, tc := range map[string]struct{ floors, want string }{
		"a value below the ceiling holds":    {"two gather/8KiB us <= 6\n", hold},
		"a value above the ceiling is named": {"two gather/64KiB us <= 6\n", "FAIL two gather/64KiB us: 6.50, floor <= 6\n"},
		"a missing value fails":              {"two gather/32KiB us <= 6\n", "FAIL two gather/32KiB us: not measured, floor <= 6\n"},
		"floors of other stages are ignored": {"phases gather/8KiB us <= 1\n", hold},
		"floors of other rows are ignored":   {"two other us <= 1\n", hold},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tc.want, checked(t, tc.floors, gathers+"hold two gathers \"$work/two.txt\" '^gather/'\n"))
		})
	}
}

func TestStepAndKernelFloorsAreSeparate(t *testing.T) {
	const floors = "phases norm/1 us <= 1\nphases step/a us <= 1\n"
	const figures = "printf 'norm/1 us 2\\nstep/a us 3\\n' >\"$work/phases.txt\"\n"
	require.Equal(t, "FAIL phases norm/1 us: 2, floor <= 1\n", checked(t, floors, figures+`phase_floors kernels "$work/phases.txt"`))
	require.Equal(t, "FAIL phases step/a us: 3, floor <= 1\n", checked(t, floors, figures+`phase_floors steps "$work/phases.txt"`))
}

// program installs a fake millrace-bench that records its arguments and prints a table.
const program = `cat >"$bin/millrace-bench" <<'.'
#!/bin/sh
echo "$@" >>"$work/calls"
printf 'load  1 GB/s\n  decode  1  388\nmemory  host 0.5 GB\n'
.
chmod +x "$bin/millrace-bench"
echo weights >"$models/llama-8b-bf16.gguf"
`

func TestTwoGPUsHaveTheirOwnFloors(t *testing.T) {
	const run = program + `model=$(random_model llama-8b bf16)
engine_figures two llama-8b-bf16@2/f16/128 "$work/two-bench" --device cuda:0,1 --model "$model"
grep -o -- "--floors [^ ]*" "$work/calls" || echo none`
	want := "ok two llama-8b-bf16@2/f16/128: load 1 GB/s\nok two llama-8b-bf16@2/f16/128: decode 1 388\n"
	require.Equal(t, want+"--floors bench/floors/some-gpu.txt\n", checked(t, "engine llama-8b-bf16@2/f16/128/decode/1 tokens >= 380\n", run))
	require.Equal(t, want+"none\n", checked(t, "engine llama-8b-bf16/f16/128/decode/1 tokens >= 238\n", run))
}

func TestOneGPURunsEveryRowWithFloors(t *testing.T) {
	const floors = "engine llama-8b-bf16@2/f16/128/decode/1 tokens >= 380\nengine llama-9b-bf16/f16/128/decode/1 tokens >= 1\n"
	out := checked(t, floors, program+"bench\n")
	require.Contains(t, out, "ok bench llama-8b-bf16/f16/128: memory host 0.5 GB\n")
	require.Contains(t, out, "FAIL bench llama-9b-bf16/f16/128: has floors and is not run\n")
	require.NotContains(t, out, "@2")
}

// TestSanitizerRunsFailWithoutRightAnswersOrASummary runs a script instead of compute-sanitizer.
func TestSanitizerRunsFailWithoutRightAnswersOrASummary(t *testing.T) {
	const ran = "[==========] 2 tests from 1 test suite ran. (3 ms total)\n"
	for name, tc := range map[string]struct {
		prints string
		status string // of the program
		want   string
	}{
		"right answers":     {ran + "========= ERROR SUMMARY: 0 errors\n", "0", "ok"},
		"wrong answers":     {ran + "========= ERROR SUMMARY: 0 errors\n", "1", "FAIL"},
		"ten hazards":       {ran + "========= RACECHECK SUMMARY: 10 hazards displayed (10 errors, 0 warnings)\n", "1", "FAIL"},
		"no test":           {"Running 0 tests\n[==========] 0 tests from 0 test suites ran.\n========= ERROR SUMMARY: 0 errors\n", "0", "FAIL"},
		"no summary":        {ran, "0", "FAIL"},
		"too many barriers": {"overflow of tracked barriers\n" + ran + "========= RACECHECK SUMMARY: 0 hazards\n", "0", "FAIL"},
	} {
		t.Run(name, func(t *testing.T) {
			out := checked(t, "", fmt.Sprintf(`printf '#!/bin/sh\ncat "$work/prints"\nexit %s\n' >"$work/compute-sanitizer"
chmod +x "$work/compute-sanitizer"
printf %%s '%s' >"$work/prints"
PATH=$work:$PATH
if followed "$work/log" --tool memcheck program >"$work/log"; then echo ok; else echo FAIL; fi
cmp "$work/log" "$work/prints"
`, tc.status, tc.prints))
			require.Equal(t, tc.want+"\n", out)
		})
	}
}

var testMacro = regexp.MustCompile(`(?m)^TEST(_F|_P)?\((\w+), (\w+)\)`)

// parameters are some that tests have.
var parameters = []string{
	"BF16", "Q8_0", "Q4_K", "Q6_K", "MXFP4", "Q3_K", "Q4_K_f16", "BF16_bf16", "MXFP4_f16", "Q4_K_f16_decode", "Q4_K_f16_prefill",
	"BF16_bf16_decode", "BF16_bf16_prefill", "MXFP4_f16_decode", "NVFP4_f16_decode", "f16_dim64_heads4x2", "f16_dim80_heads9x9",
	"f16_dim96_heads6x2", "f16_dim128_heads32x8", "f16_dim256_heads4x2", "f16_dim512_heads1x1", "0",
}

// TestSanitizerRunsNameTheirTests requires each part of a filter to match a test of its program.
func TestSanitizerRunsNameTheirTests(t *testing.T) {
	runs := strings.Split(strings.TrimSpace(checked(t, "", "sanitizer_runs")), "\n")
	require.Greater(t, len(runs), 30)
	for _, run := range runs {
		fields := strings.Fields(run)
		require.Len(t, fields, 3, run)
		sources, err := filepath.Glob("tests/" + strings.TrimPrefix(fields[1], "portable/") + "_test.c*")
		require.NoError(t, err)
		require.Len(t, sources, 1, run)
		text, err := os.ReadFile(sources[0])
		require.NoError(t, err)
		var names []string
		for _, test := range testMacro.FindAllStringSubmatch(string(text), -1) {
			name := test[2] + "." + test[3]
			if test[1] != "_P" {
				names = append(names, name)
				continue
			}
			for _, parameter := range parameters {
				names = append(names, "All/"+name+"/"+parameter, "Shapes/"+name+"/"+parameter)
			}
		}
		for _, pattern := range regexp.MustCompile(`:?-|:`).Split(fields[2], -1) {
			whole := regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, ".*") + "$")
			require.True(t, pattern == "" || slices.ContainsFunc(names, whole.MatchString), "%s: no test is named %s", run, pattern)
		}
	}
}
