# The stage sanitizer of gpu-check.sh, which sources this file.
# shellcheck shell=bash disable=SC2034,SC2154 # variables are shared with gpu-check.sh

# sanitize TOOL NAME PROGRAM ...: begins a run under compute-sanitizer, beside JOBS - 1 others at most: the tool keeps one
# processor busy, and the device little. GPUs that CUDA_VISIBLE_DEVICES names take turns. sanitized waits for all of them. JUDGE
# names what judges the run: followed, where it is not set, or findings.
runs=()
sanitize() {
  local tool=$1 name=$2 gpus
  shift 2
  IFS=, read -r -a gpus <<<"${CUDA_VISIBLE_DEVICES:-0}"
  while (($(jobs -rp | wc -l) >= JOBS)); do sleep 0.1; done
  CUDA_VISIBLE_DEVICES=${gpus[${#runs[@]} % ${#gpus[@]}]} try sanitizer "$tool: $name" "$tool-${name// /-}" \
    "${JUDGE:-followed}" --tool "$tool" --error-exitcode 1 "$@" &
  runs+=($!)
}

# One run, which fails too where the tool could not follow all of it or no test ran.
followed() {
  local log status
  log=$(mktemp) || return
  timeout 900 compute-sanitizer "$@" >"$log" 2>&1
  status=$?
  ! grep -iE 'overflow of tracked|Running 0 tests' "$log" >/dev/null || status=1
  cat "$log"
  rm -f "$log"
  return "$status"
}

# The same of tests that give other answers under the tool: what they say does not count, but that they ran to their end does, and
# what the tool finds.
findings() {
  local log status=1
  log=$(mktemp) || return
  followed "$@" >"$log"
  if grep -qE '^\[=+\] [1-9][0-9]* tests? .* ran\.' "$log" && ! grep -qi 'overflow of tracked' "$log" &&
    grep -qE '^=+ (ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards)' "$log"; then status=0; fi
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
  # Small shapes of every type; the rest of the products' tests are large.
  local name change few='--gtest_filter=All/Product.KeepsANaN*:All/Product.JoinsGate*BF16*:All/Product.AddsBias*Q4_K*'
  # Those that take longest begin first.
  if build_portable; then
    sanitize racecheck 'portable tiles of a few tokens' "$products/cuda_linear_tiles_test" '--gtest_filter=All/FewTokens*/Q4_K'
    sanitize racecheck 'portable products' "$products/cuda_linear_product_test" "$few"
  fi
  # Memory that is not given back by the end of the program counts as an error; a refusal that a test provokes does not. Tests
  # that watch how much of the device is free want it for themselves, and run among the tests alone.
  sanitize memcheck 'leaks of the engine' --leak-check full --report-api-errors no "$out/cuda_engine_memory_test" \
    '--gtest_filter=-Pool.LeavesFreeMemory*:Health.*:*Graphs*'
  # Every width of a head is a kernel of another width with zeros: racecheck, which is slow, takes the widths of kernels. Nor does it
  # take prompts around every cut of their keys or every tile, which run the kernels of the other tests many more times.
  for name in attention attention_prefill attention_f8 heads_product normed_product norm linear_repack ops op_product qkv; do
    sanitize racecheck "$name" "$out/cuda_${name}_test" '--gtest_filter=-*EveryEvenWidth*:*AroundCuts*:*AroundTiles*'
    sanitize memcheck "$name" "$out/cuda_${name}_test"
  done
  # Two tests choose other candidates under the tool than without it: docs/decisions/066.
  change='*AtTheBordersOfParts:*ThatBinsSplitBadly'
  for name in racecheck memcheck; do
    sanitize "$name" sampler "$out/cuda_sampler_test" "--gtest_filter=-$change"
    JUDGE=findings sanitize "$name" 'sampler, answers aside' "$out/cuda_sampler_test" "--gtest_filter=$change"
  done
  # Kernels without shared memory, in which racecheck finds nothing.
  for name in slots block_copy; do sanitize memcheck "$name" "$out/cuda_${name}_test"; done
  sanitize memcheck 'steps of small models' "$out/cuda_engine_runner_test" '--gtest_filter=Shapes/Sameness.OfGraphsAndLaunches/*'
  sanitize memcheck products "$out/cuda_linear_product_test" "$few"
  sanitize memcheck tiles "$out/cuda_linear_tiles_test"
  # A block has up to 66 mbarriers, more than the tool finds by itself. Where a warp writes what others read, or writes again, behind an
  # mbarrier at which one lane arrives for it, the tool takes what __syncwarp orders for a race: docs/decisions/066.
  [[ $products == "$out" ]] ||
    sanitize racecheck 'products of Hopper' --num-cuda-barriers 128 "$out/cuda_linear_product_test" "$few-*_prefill"
  sanitized
}
