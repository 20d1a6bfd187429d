# The stages tests, alone, faults, portable, conformance and sameness of gpu-check.sh, which sources this file.
# shellcheck shell=bash disable=SC2034,SC2154 # variables are shared with gpu-check.sh

# Programs and suites end within a quarter of an hour, or hang.
limited=(timeout -k 10 900)
readonly limited

# program STAGE NAME: runs a GoogleTest program, in which some test must pass or say why it is skipped.
program() {
  local stage=$1 name=$2 log=$1-$2 passed skipped
  try "$stage" "$name" "$log" "${limited[@]}" "$out/$name" || return
  passed=$(tests_in "$log" PASSED) skipped=$(tests_in "$log" SKIPPED)
  if ((passed + skipped == 0)); then row FAIL "$stage" "$name: no test passed: see $work/$log.log"; return; fi
  ((skipped == 0)) || row skip "$stage" "$name: $skipped tests: see $work/$log.log"
}

# tests_in LOG PASSED|SKIPPED: prints how many tests of a program did.
tests_in() {
  local count
  count=$(sed -n "s/^\\[ *$2 *\\] \\([0-9]*\\) test.*/\\1/p" "$work/$1.log" | tail -n 1)
  echo "${count:-0}"
}

# programs STAGE NAME ...: runs GoogleTest programs, $TESTS at once if they are clients of the multi-process service.
programs() {
  local stage=$1 name ran=0 count=0 at_once=1 run runs=()
  shift
  [[ -z $shared ]] || at_once=$TESTS
  for name in "$@"; do
    while (($(jobs -rp | wc -l) >= at_once)); do sleep 0.1; done
    apart program "$stage" "$name"
    runs+=($!)
  done
  for run in "${runs[@]}"; do
    if wait "$run"; then ran=$((ran + $(tests_in "$stage-$1" PASSED))) count=$((count + 1)); else failed=1; fi
    shift
  done
  if ((ran == 0)); then row FAIL "$stage" 'no test passed'
  else row ok "$stage" "$ran GoogleTests of $count programs passed"; fi
}

# Programs that need the GPUs alone: those that count free memory, which other processes would change; those whose kernels wait for
# kernels of other streams; and those of faults. As a client of the multi-process service a gather of four streams of one GPU held it
# for ever (H200), probably because the kernel that the others waited for was queued behind them. If a client loses its GPU, as a test
# of faults does on purpose, every client of the service loses it.
readonly needs_alone='cuda_engine_memory_test cuda_engine_runner_test cuda_gather_test cuda_engine_divided_test
  cuda_engine_divided_experts_test cuda_engine_fault_test cuda_engine_fault_step_test cuda_engine_fault_memory_test
  cuda_engine_fault_model_test cuda_engine_fault_divided_test cuda_engine_hidden_test cuda_engine_two_devices_test'

tests() {
  local missing='' source name found=()
  if [[ -x $out/cuda_capi_test ]]; then try tests 'C program over the ABI' capi "${limited[@]}" "$out/cuda_capi_test" gpu
  else missing=' cuda_capi_test'; fi
  for source in "$root"/cuda/tests/*_test.cu "$root"/cuda/tests/*_test.cpp; do
    name=cuda_$(basename "${source%.*}")
    if [[ ! -x $out/$name ]]; then missing+=" $name"
    elif ! grep -qw "$name" <<<"$needs_alone"; then found+=("$name"); fi
  done
  programs tests "${found[@]}"
  [[ -z $missing ]] || row FAIL tests "not built:$missing"
}

# shellcheck disable=SC2086 # a list of names
alone() { programs alone $needs_alone; }

faults() {
  local each found=()
  for each in "$out"/cuda_engine_fault*_test; do
    [[ ! -x $each || $each == *_divided_test ]] || found+=("$(basename "$each")")
  done
  programs faults "${found[@]}"
}

# The build whose GEMMs and attention are those of devices other than Hopper.
portable_build=$out
[[ $gpu_capability != 9.0 ]] || portable_build=$work/portable
readonly portable_build

portable() {
  [[ $portable_build != "$out" ]] || { row skip portable 'every test on this GPU already runs the portable kernels'; return; }
  build_portable || return
  local name run runs=()
  for name in gemm gemm_tiles attention_prefill; do
    apart try portable "cuda_${name}_test for 90" "portable-$name" "${limited[@]}" "$portable_build/cuda_${name}_test"
    runs+=($!)
    [[ -n $shared ]] || wait "$!"
  done
  for run in "${runs[@]}"; do wait "$run" || failed=1; done
}

build_portable() {
  [[ $portable_build != "$out" ]] || return 0
  configured "$portable_build" 90 -DMILLRACE_CUDA_TESTS=ON >"$work/portable-build.log" 2>&1 &&
    cmake --build "$portable_build" --target cuda_gemm_test cuda_gemm_tiles_test cuda_experts_gemm_test cuda_attention_prefill_test \
      >>"$work/portable-build.log" 2>&1 && return
  row FAIL portable "build for 90: see $work/portable-build.log"
  return 1
}

conformance() {
  MILLRACE_TEST_CUDA_ENGINE=$out try conformance 'Go suite, by default, in f16, with a cache of bf16' conformance \
    "$bin/native.test" -test.run TestTheCUDAEngine -test.timeout 9m -test.v
  local count
  count=$(grep -c -- '--- PASS' "$work/conformance.log")
  if ((count > 0)); then row ok conformance "$count checks passed"; else row FAIL conformance 'no check was run'; fi
  MILLRACE_ENGINE_PATH=$out try conformance "the worker's self-test" selftest "$bin/millrace-worker" --self-test --device gpu
}

# Random scenarios of the step loop over the engine; every answer is compared bit for bit with its request alone. The log
# counts what happened; a failure names the seed that repeats the scenario.
sameness() {
  local log=$work/sameness.log cache
  MILLRACE_TEST_CUDA_ENGINE=$out try sameness 'scenarios of the step loop against each request alone, and mutants' sameness \
    "$bin/sametest.test" -test.run CUDA -test.timeout 9m30s -test.v
  for cache in f16 bf16 f8; do
    if awk -v want="/$cache\$" '
      /^ *=== (RUN|NAME|CONT)/ { inside = $3 ~ want }
      inside && / scenarios:$/ { scenarios = $(NF - 1) }
      inside && / answers compared$/ { answers = $1 }
      inside && / tokens compared$/ { tokens = $1 }
      END { if (tokens) print scenarios " scenarios, " answers " answers and " tokens " tokens compared"; exit !tokens }
    ' "$log" >"$log.$cache"; then row ok sameness "cache of $cache: $(<"$log.$cache")"
    else row FAIL sameness "cache of $cache: nothing was compared: see $log"; fi
  done
}
