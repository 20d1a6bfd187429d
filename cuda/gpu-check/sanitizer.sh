# The stage sanitizer of gpu-check.sh, which sources this file.
# shellcheck shell=bash disable=SC2034,SC2154 # variables are shared with gpu-check.sh

# sanitize TOOL NAME PROGRAM ...: starts a run under compute-sanitizer, with at most JOBS runs at once: the tool occupies
# one processor, and the device little. GPUs of CUDA_VISIBLE_DEVICES are used in rotation. sanitized waits for all runs.
runs=()
sanitize() {
  local tool=$1 name=$2 gpus
  shift 2
  IFS=, read -r -a gpus <<<"${CUDA_VISIBLE_DEVICES:-0}"
  while (($(jobs -rp | wc -l) >= JOBS)); do sleep 0.1; done
  CUDA_VISIBLE_DEVICES=${gpus[${#runs[@]} % ${#gpus[@]}]} try sanitizer "$tool: $name" "$tool-${name// /-}" \
    followed --tool "$tool" --error-exitcode 1 "$@" &
  runs+=($!)
}

# Runs once. Fails also if the tool could not follow the whole run or has no summary, or no test ran.
followed() {
  local log status
  log=$(mktemp) || return
  timeout 900 compute-sanitizer "$@" >"$log" 2>&1
  status=$?
  ! grep -iE 'overflow of tracked|Running 0 tests' "$log" >/dev/null || status=1
  grep -qE '^=+ (ERROR|RACECHECK) SUMMARY: ' "$log" || status=1
  cat "$log"
  rm -f "$log"
  return "$status"
}

sanitized() {
  local run
  for run in "${runs[@]}"; do wait "$run" || failed=1; done
  runs=()
}

sanitizer() {
  command -v compute-sanitizer >/dev/null || { row skip sanitizer 'compute-sanitizer is not here'; return; }
  # Small shapes of every type; the other GEMM tests are large.
  local name few='--gtest_filter=All/Gemm.KeepsANaN*:All/Gemm.JoinsGate*BF16*:All/Gemm.AddsBias*Q4_K*'
  local grouped='--gtest_filter=*/Q4_K_f16*:*/BF16_bf16*:*/MXFP4_f16*:*/NVFP4_f16*'
  if build_portable; then
    sanitize racecheck 'portable tiles of a few tokens' "$portable_build/cuda_gemm_tiles_test" '--gtest_filter=All/FewTokens*/Q4_K'
    sanitize racecheck 'portable GEMMs' "$portable_build/cuda_gemm_test" "$few"
    # Hopper multiplies experts with several pairs as the GEMMs of Hopper below.
    sanitize racecheck 'portable grouped GEMMs' "$portable_build/cuda_experts_gemm_test" "$grouped"
  fi
  # Memory that is not freed by the end of the program is an error; a refusal that a test provokes is not. Tests that
  # measure how much of the device is free need it alone, so they run only in the stage alone.
  sanitize memcheck 'leaks of the engine' --leak-check full --report-api-errors no "$out/cuda_engine_memory_test" \
    '--gtest_filter=-Pool.LeavesFreeMemory*:Health.*:*Graphs*'
  # Neither tool repeats launches by the thousand. Other head widths run the kernel of a wider head, padded with zeros, so
  # racecheck, which is slow, tests the compiled widths only. It also skips prompts around every cut of keys, of every tile
  # and for every number of processors, which run the same kernels many more times, and GEMMs by wgmma (see below).
  local repeated='--gtest_filter=-*LaunchAfterLaunch*'
  local slow="$repeated:*EveryEvenWidth*:*AroundCuts*:*AroundTiles*:*HowManyProcessors*:*Beyond65536*:*ManyTokens*"
  for name in attention attention_prefill attention_f8 heads_gemm normed_gemm norm gemm_repack ops op_matmul qkv experts_route experts_combine; do
    sanitize racecheck "$name" "$out/cuda_${name}_test" "$slow"
    sanitize memcheck "$name" "$out/cuda_${name}_test" "$repeated"
  done
  sanitize memcheck 'grouped GEMMs' "$out/cuda_experts_gemm_test" "$grouped"
  sanitize memcheck 'experts of a row' "$out/cuda_experts_row_test" '--gtest_filter=*/Q4_K_f16:*/BF16_bf16:*/MXFP4_f16'
  for name in racecheck memcheck; do sanitize "$name" sampler "$out/cuda_sampler_test"; done
  # Kernels without shared memory, for which racecheck has nothing to check.
  for name in slots block_copy; do sanitize memcheck "$name" "$out/cuda_${name}_test"; done
  sanitize memcheck 'steps of small models' "$out/cuda_engine_runner_test" '--gtest_filter=Shapes/Sameness.OfGraphsAndLaunches/*'
  sanitize memcheck GEMMs "$out/cuda_gemm_test" "$few"
  sanitize memcheck tiles "$out/cuda_gemm_tiles_test" '--gtest_filter=*/BF16:*/Q8_0:*/Q4_K:*/Q6_K:*/Q2_K'
  # A block has up to 66 mbarriers, more than the tool tracks by default. If a warp writes data for others, or overwrites
  # it, after an mbarrier at which one lane arrives for the warp, the tool reports a race that __syncwarp excludes: see
  # cuda/kernels/README.md.
  [[ $portable_build == "$out" ]] ||
    sanitize racecheck 'GEMMs of Hopper' --num-cuda-barriers 128 "$out/cuda_gemm_test" "$few-*_prefill"
  sanitized
}
