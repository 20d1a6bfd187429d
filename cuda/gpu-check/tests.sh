# The stages tests, faults, portable, conformance and sameness of gpu-check.sh, which sources this file.
# shellcheck shell=bash disable=SC2034,SC2154 # variables are shared with gpu-check.sh

# program STAGE NAME [FOLDER]: runs a GoogleTest program of a build, in which some test must pass or say why it is
# skipped; adds to $ran and $programs.
program() {
  local stage=$1 name=$2 log=$work/$2.log count skipped
  try "$stage" "$name" "$name" "${3:-$out}/$name" || return
  count=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$log" | tail -n 1)
  skipped=$(sed -n 's/^\[  SKIPPED \] \([0-9]*\) test.*/\1/p' "$log" | tail -n 1)
  if ((${count:-0} + ${skipped:-0} == 0)); then row FAIL "$stage" "$name: no test passed: see $log"; return; fi
  ((${skipped:-0} == 0)) || row skip "$stage" "$name: $skipped tests: see $log"
  ran=$((ran + ${count:-0})) programs=$((programs + 1))
}

tests() {
  local ran=0 programs=0 missing='' source name
  if [[ -x $out/cuda_capi_test ]]; then try tests 'C program over the ABI' capi "$out/cuda_capi_test" gpu
  else missing=' cuda_capi_test'; fi
  for source in "$root"/cuda/tests/*_test.cu "$root"/cuda/tests/*_test.cpp; do
    name=cuda_$(basename "${source%.*}")
    if [[ -x $out/$name ]]; then program tests "$name"; else missing+=" $name"; fi
  done
  if [[ -n $missing ]]; then row FAIL tests "not built:$missing"
  elif ((ran == 0)); then row FAIL tests 'no test passed'
  else row ok tests "$ran GoogleTests of $programs programs passed"; fi
}

faults() {
  local ran=0 programs=0 each
  for each in "$out"/cuda_engine_fault*_test; do
    [[ ! -x $each ]] || program faults "$(basename "$each")"
  done
  if ((ran == 0)); then row FAIL faults 'no test passed'
  else row ok faults "$ran GoogleTests of $programs programs passed"; fi
}

# The build whose GEMMs and attention are those of devices other than Hopper.
portable_build=$out
[[ $gpu_capability != 9.0 ]] || portable_build=$work/portable
readonly portable_build

portable() {
  [[ $portable_build != "$out" ]] || { row skip portable 'every test on this GPU already runs the portable kernels'; return; }
  build_portable || return
  local name
  for name in gemm gemm_tiles attention_prefill; do
    try portable "cuda_${name}_test for 90" "portable-$name" "$portable_build/cuda_${name}_test"
  done
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
