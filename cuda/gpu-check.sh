#!/usr/bin/env bash
# gpu-check.sh [STAGE ...]: builds the CUDA engine on a GPU host and proves it. Without stages it runs all of them:
#
#   build        the library, its tests and benchmarks with cmake and ninja
#   tests        every GoogleTest program, and the C program over the whole ABI
#   sanitizer    compute-sanitizer: memcheck of whole steps, racecheck of the kernels that it can follow: the products'
#                bulk copies, mbarriers and cluster barriers it takes for races
#   conformance  the Go suite that every engine passes, with f16 and with bf16 activations
#   generate     a story through scheduler and worker, twice, and the same from the worker alone
#   bench        tokens a second of random-weight models, with the roofs measured beside them
#
# One line a check goes to the table in $WORK (default build/gpu-check), which stages run one by one add to; `table` as the
# only argument prints it. Ends with 1 if any check failed. Needs nvcc, cmake, ninja and GoogleTest, no Go: programs come
# from bin/ (a bundle) or build/bin.
#
#   ARCHITECTURES  compute capabilities to build for (default: this GPU's, 9.0 as 90a)
#   BENCH          SHAPE:TYPE:KV:BATCHES:PROMPT of each benchmark, divided by spaces
set -uo pipefail
root=$(cd "$(dirname "$0")" && pwd)
[[ -f $root/cuda/CMakeLists.txt ]] || root=$(dirname "$root")
cd "$root" || exit 1
readonly work=${WORK:-$root/build/gpu-check}
bin=$root/bin
[[ -d $bin || ! -f bin.tar.gz ]] || tar -xzf bin.tar.gz
[[ -d $bin ]] || bin=$root/build/bin
readonly bin out=$work/cuda models=$work/models table=$work/table.txt
readonly BENCH=${BENCH:-llama-8b:bf16:bf16:1,64,128:128 llama-8b:q8_0:f16:1,64:128 llama-8b:q4_k:f16:1,8,64:128
  llama-1b:bf16:bf16:1,8,64:128 llama-1b:q8_0:f16:1:128 llama-1b:q4_k:f16:1:128
  llama-8b:bf16:bf16:1:512 llama-8b:q8_0:f16:1:512 llama-8b:q4_k:f16:1:512
  llama-8b:bf16:bf16:1:4096 llama-8b:q8_0:f16:1:4096 llama-8b:q4_k:f16:1:4096}
mkdir -p "$work" "$models"
failed=0

# row RESULT STAGE WHAT: one line of the table.
row() {
  printf '%-4s  %-12s %s\n' "$1" "$2" "$3" | tee -a "$table"
  [[ $1 == ok || $1 == skip ]] || failed=1
}

# try STAGE WHAT LOG COMMAND ...: runs a command into a log; its end is shown where it fails.
try() {
  local stage=$1 what=$2 log=$work/$3.log began=$SECONDS
  shift 3
  if "$@" >"$log" 2>&1; then
    row ok "$stage" "$what ($((SECONDS - began)) s)"
  else
    row FAIL "$stage" "$what: see $log"
    tail -n 15 "$log"
    return 1
  fi
}

build() {
  local capability
  capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
  [[ $capability == 90 ]] && capability=90a
  try build "configure" configure cmake -S cuda -B "$out" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    "-DMILLRACE_CUDA_ARCHITECTURES=${ARCHITECTURES:-$capability}" || return
  try build "compile for ${ARCHITECTURES:-$capability}" compile cmake --build "$out"
}

tests() {
  try tests "C program over the ABI" capi "$out/cuda_capi_test" gpu
  local program name
  for program in "$out"/cuda_*_test; do
    name=$(basename "$program")
    [[ $name == cuda_capi_test ]] || try tests "$name" "$name" "$program"
  done
}

sanitizer() {
  command -v compute-sanitizer >/dev/null || { row skip sanitizer 'compute-sanitizer is not here'; return; }
  local name
  try sanitizer "memcheck: steps of small models" memcheck-step timeout 240 compute-sanitizer --tool memcheck --error-exitcode 1 \
    "$out/cuda_engine_runner_test" '--gtest_filter=Shapes/Sameness.OfGraphsAndLaunches/*'
  for name in norm ops sampler; do
    try sanitizer "memcheck: cuda_${name}_test" "memcheck-$name" timeout 120 compute-sanitizer --tool memcheck --error-exitcode 1 \
      "$out/cuda_${name}_test"
    try sanitizer "racecheck: cuda_${name}_test" "racecheck-$name" timeout 120 compute-sanitizer --tool racecheck --error-exitcode 1 \
      "$out/cuda_${name}_test"
  done
}

conformance() {
  MILLRACE_TEST_CUDA_ENGINE=$out try conformance "Go suite, f16 and bf16 activations" conformance \
    "$bin/native.test" -test.run TestTheCUDAEngine -test.timeout 9m -test.v
  local passed
  passed=$(grep -c -- '--- PASS' "$work/conformance.log")
  row ok conformance "$passed checks passed"
  MILLRACE_ENGINE_PATH=$out try conformance "the worker's self-test" selftest "$bin/millrace-worker" --self-test --device gpu
}

generate() {
  local worker=127.0.0.1:17071 scheduler=127.0.0.1:17070 pids=() first again alone
  MILLRACE_ENGINE_PATH=$out "$bin/millrace-worker" --listen "$worker" --device cuda:0 --models models >"$work/worker.log" 2>&1 &
  pids+=($!)
  "$bin/millrace-scheduler" --listen "$scheduler" --workers "$worker" >"$work/scheduler.log" 2>&1 &
  pids+=($!)
  local tries
  for ((tries = 0; tries < 60; tries++)); do
    "$bin/millrace" load stories --target "$scheduler" >"$work/load.log" 2>&1 && break
    sleep 0.5
  done
  story() { "$bin/millrace" generate -m stories 'Once upon a time' --max-tokens 64 --seed 1 --temperature 0.8 --target "$1" 2>>"$work/generate.log"; }
  first=$(story "$scheduler")
  again=$(story "$scheduler")
  alone=$(story "$worker")
  kill "${pids[@]}" 2>/dev/null
  wait "${pids[@]}" 2>/dev/null
  if [[ ${#first} -gt 40 && $first == "$again" && $first == "$alone" ]]; then
    row ok generate "the same story three times: ${first:0:60}..."
  else
    row FAIL generate "stories differ or are empty: see $work/generate.log, worker.log, scheduler.log"
  fi
}

bench() {
  local each shape type kv batches prompt file log tokens
  for each in $BENCH; do
    IFS=: read -r shape type kv batches prompt <<<"$each"
    file=$models/$shape-$type.gguf log=$work/bench-$shape-$type-$prompt
    [[ -s $file ]] || "$bin/millrace-bench" synth --shape "$shape" --type "$type" -o "$file" >"$log.synth.log" 2>&1
    tokens=64
    ((prompt > 128)) && tokens=8
    if "$bin/millrace-bench" engine --device gpu --engine-path "$out" --model "$file" --kv "$kv" --depth 2 --batch "$batches" \
      --prompt "$prompt" --tokens "$tokens" --repeat 3 --roof-time 200ms --save "$log.json" >"$log.log" 2>&1; then
      row ok bench "$shape $type, kv $kv, prompts of $prompt: $(grep -m 1 '^load ' "$log.log" | tr -s ' ')"
      while read -r line; do row ok bench "$shape $type, prompt $prompt: $line"; done < <(grep -E '^ +(prefill|decode) ' "$log.log" | tr -s ' ')
    else
      row FAIL bench "$shape $type, prompts of $prompt: see $log.log"
      tail -n 5 "$log.log"
    fi
  done
}

if [[ ${1:-} == table ]]; then
  cat "$table"
  ! grep -q '^FAIL' "$table"
  exit
fi
if (($# == 0)); then
  set -- build tests sanitizer conformance generate bench
  rm -f "$table"
fi
[[ -f $table ]] || {
  printf 'gpu-check %s\n' "$(date -u +%Y-%m-%dT%H:%MZ)"
  nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv,noheader
  nvcc --version | grep release
} >"$table"
for stage in "$@"; do
  case $stage in
    build | tests | sanitizer | conformance | generate | bench) "$stage" ;;
    *) echo "unknown stage $stage" >&2; exit 2 ;;
  esac
done
exit "$failed"
