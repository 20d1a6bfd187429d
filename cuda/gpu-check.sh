#!/usr/bin/env bash
# gpu-check.sh [STAGE ...]: builds the CUDA engine on a GPU host and proves it. Without stages it runs all of them:
#
#   build        the library, its tests and benchmarks with cmake and ninja
#   tests        every GoogleTest program, and the C program over the whole ABI
#   portable     the products of devices before Hopper, built for 9.0 without what only that has, where this is one
#   sanitizer    compute-sanitizer: memcheck of whole steps, memcheck and racecheck of the kernels on small shapes; of the
#                products of Hopper on those of up to 64 tokens whose rings do not wrap: racecheck takes it for a race when
#                lanes have read a stage, or written sums, and one of them arrives at the mbarrier for the warp
#   conformance  the Go suite that every engine passes, with f16 and with bf16 activations
#   generate     a story through scheduler and worker, twice, and the same from the worker alone, which asks the driver for no
#                memory meanwhile
#   bytes        what ncu counts of one decode step in device memory, beside the bytes that the step claims to read
#   bench        tokens a second of random-weight models, with the roofs measured beside them
#
# One line a check goes to the table in $WORK (default build/gpu-check), which stages run one by one add to; `table` as the
# only argument prints it. Ends with 1 if any check failed. Needs nvcc, cmake, ninja and GoogleTest, no Go: programs come
# from bin/ (a bundle) or build/bin.
#
#   JOBS           runs of compute-sanitizer at once (default: 4, and 1 where the GPU takes one process alone)
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
JOBS=${JOBS:-4}
[[ $(nvidia-smi --query-gpu=compute_mode --format=csv,noheader 2>/dev/null | head -n 1) != Exclusive* ]] || JOBS=1
readonly JOBS
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

# Where the products run that devices before Hopper run.
products=$out
if [[ $(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1) == 9.0 ]]; then products=$work/portable; fi
readonly products

portable() {
  [[ $products != "$out" ]] || { row skip portable 'every test here runs what devices before Hopper run'; return; }
  build_portable || return
  local name
  for name in linear_product linear_tiles; do
    try portable "cuda_${name}_test for 90" "portable-$name" "$products/cuda_${name}_test"
  done
}

build_portable() {
  [[ $products != "$out" ]] || return 0
  cmake -S cuda -B "$products" -G Ninja -DCMAKE_BUILD_TYPE=Release -DMILLRACE_CUDA_ARCHITECTURES=90 >"$work/portable-build.log" 2>&1 &&
    cmake --build "$products" --target cuda_linear_product_test cuda_linear_tiles_test >>"$work/portable-build.log" 2>&1 && return
  row FAIL portable "build for 90: see $work/portable-build.log"
  return 1
}

# sanitize TOOL NAME PROGRAM ...: begins a run under compute-sanitizer, beside JOBS - 1 others at most: the tool keeps one
# processor busy, and the device little. sanitized waits for all of them.
runs=()
sanitize() {
  local tool=$1 name=$2
  shift 2
  while (($(jobs -rp | wc -l) >= JOBS)); do sleep 0.1; done
  try sanitizer "$tool: $name" "$tool-${name// /-}" followed --tool "$tool" --error-exitcode 1 "$@" &
  runs+=($!)
}
trap 'kill $(jobs -p) 2>/dev/null' EXIT

# One run, which fails too where the tool could not follow all of it or no test ran.
followed() {
  local log
  log=$(mktemp) || return
  timeout 360 compute-sanitizer "$@" >"$log" 2>&1
  local status=$?
  ! grep -iE 'overflow of tracked|Running 0 tests' "$log" >/dev/null || status=1
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
  local name few='--gtest_filter=All/Product.KeepsANaN*:All/Product.JoinsGate*BF16*:All/Product.AddsBias*Q4_K*'
  # Those that take longest begin first.
  if build_portable; then
    sanitize racecheck 'portable tiles of a few tokens' "$products/cuda_linear_tiles_test" '--gtest_filter=All/FewTokens*/Q4_K'
    sanitize racecheck 'portable products' "$products/cuda_linear_product_test" "$few"
  fi
  for name in attention normed_product sampler norm linear_repack ops qkv; do
    sanitize racecheck "$name" "$out/cuda_${name}_test"
    sanitize memcheck "$name" "$out/cuda_${name}_test"
  done
  sanitize memcheck 'steps of small models' "$out/cuda_engine_runner_test" '--gtest_filter=Shapes/Sameness.OfGraphsAndLaunches/*'
  sanitize memcheck products "$out/cuda_linear_product_test" "$few"
  sanitize memcheck tiles "$out/cuda_linear_tiles_test"
  # A block has up to 66 mbarriers, more than the tool finds by itself. Stages of F32 weights are the largest.
  [[ $products == "$out" ]] ||
    sanitize racecheck 'products of Hopper' --num-cuda-barriers 128 "$out/cuda_linear_product_test" "$few-*/F32_*_prefill"
  sanitized
}

conformance() {
  MILLRACE_TEST_CUDA_ENGINE=$out try conformance "Go suite, f16 and bf16 activations" conformance \
    "$bin/native.test" -test.run TestTheCUDAEngine -test.timeout 9m -test.v
  local passed
  passed=$(grep -c -- '--- PASS' "$work/conformance.log")
  if ((passed > 0)); then row ok conformance "$passed checks passed"; else row FAIL conformance 'no check was run'; fi
  MILLRACE_ENGINE_PATH=$out try conformance "the worker's self-test" selftest "$bin/millrace-worker" --self-test --device gpu
}

generate() {
  local worker=127.0.0.1:17071 scheduler=127.0.0.1:17070 pids=() first again alone
  local counts=$work/allocations.log ready=0
  rm -f "$counts"
  MILLRACE_ALLOCATIONS=$counts LD_PRELOAD=$out/libcuda_allocations.so MILLRACE_ENGINE_PATH=$out \
    "$bin/millrace-worker" --listen "$worker" --device cuda:0 --models models >"$work/worker.log" 2>&1 &
  pids+=($!)
  "$bin/millrace-scheduler" --listen "$scheduler" --workers "$worker" >"$work/scheduler.log" 2>&1 &
  pids+=($!)
  local tries
  for ((tries = 0; tries < 60; tries++)); do
    "$bin/millrace" load stories --target "$scheduler" >"$work/load.log" 2>&1 && break
    sleep 0.5
  done
  story() { "$bin/millrace" generate -m stories 'Once upon a time' --max-tokens 64 --seed 1 --temperature 0.8 --target "$1" 2>>"$work/generate.log"; }
  [[ ! -s $counts ]] || ready=$(wc -l <"$counts")
  first=$(story "$scheduler")
  again=$(story "$scheduler")
  alone=$(story "$worker")
  if ((ready > 0)) && [[ $(wc -l <"$counts") == "$ready" ]]; then
    row ok generate "$ready allocations by the driver until READY, none after"
  else
    row FAIL generate "$ready allocations by the driver until READY, $(wc -l <"$counts") in all: see $counts"
  fi
  kill "${pids[@]}" 2>/dev/null
  wait "${pids[@]}" 2>/dev/null
  if [[ ${#first} -gt 40 && $first == "$again" && $first == "$alone" ]]; then
    row ok generate "the same story three times: ${first:0:60}..."
  else
    row FAIL generate "stories differ or are empty: see $work/generate.log, worker.log, scheduler.log"
  fi
}

bytes() {
  command -v ncu >/dev/null || { row skip bytes 'ncu is not here'; return; }
  local type batch log counted claimed
  while read -r type batch; do
    log=$work/bytes-$type-$batch.log
    if ! timeout 120 ncu --profile-from-start off --graph-profiling graph --clock-control none --csv --print-units base \
      --metrics dram__bytes_read.sum,dram__bytes_write.sum "$out/cuda_bench_step_bytes" --type "$type" --batch "$batch" >"$log" 2>&1; then
      if grep -q ERR_NVGPUCTRPERM "$log"; then row skip bytes "$type, batch $batch: counters are not permitted here"
      else row FAIL bytes "$type, batch $batch: see $log"; fi
      continue
    fi
    claimed=$(sed -n 's/.* claims to read \([0-9]*\) bytes$/\1/p' "$log")
    counted=$(awk -F'","' '$13 ~ /^dram__bytes/ { gsub(/[",]/, "", $15); sum += $15 } END { printf "%.0f", sum }' "$log")
    if awk -v a="$counted" -v b="$claimed" 'BEGIN { exit !(a > 0 && b > 0 && a < 1.05 * b && a > 0.95 * b) }'; then
      row ok bytes "$type, batch $batch: $counted bytes counted, $claimed claimed"
    else
      row FAIL bytes "$type, batch $batch: $counted bytes counted, $claimed claimed: see $log"
    fi
  done <<<"bf16 1
bf16 64
q8_0 1
q4_k 1"
}

bench() {
  local each shape type kv batches prompt file log tokens memory
  for each in $BENCH; do
    IFS=: read -r shape type kv batches prompt <<<"$each"
    file=$models/$shape-$type.gguf log=$work/bench-$shape-$type-$prompt
    [[ -s $file ]] || "$bin/millrace-bench" synth --shape "$shape" --type "$type" -o "$file" >"$log.synth.log" 2>&1
    tokens=64
    ((prompt > 128)) && tokens=8
    if "$bin/millrace-bench" engine --device gpu --engine-path "$out" --model "$file" --kv "$kv" --depth 2 --batch "$batches" \
      --prompt "$prompt" --tokens "$tokens" --repeat 3 --roof-time 200ms --save "$log.json" >"$log.log" 2>&1; then
      row ok bench "$shape $type, kv $kv, prompts of $prompt: $(grep -m 1 '^load ' "$log.log" | tr -s ' ')"
      memory=$(grep -m 1 '^memory ' "$log.log" | tr -s ' ')
      if [[ $memory =~ host\ 0\. ]]; then row ok bench "$shape $type: $memory"; else row FAIL bench "$shape $type: $memory, want below 1 GB"; fi
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
  set -- build tests portable sanitizer conformance generate bytes bench
  rm -f "$table"
fi
[[ -f $table ]] || {
  printf 'gpu-check %s\n' "$(date -u +%Y-%m-%dT%H:%MZ)"
  nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv,noheader
  nvcc --version | grep release
} >"$table"
for stage in "$@"; do
  case $stage in
    build | tests | portable | sanitizer | conformance | generate | bytes | bench) "$stage" ;;
    *) echo "unknown stage $stage" >&2; exit 2 ;;
  esac
done
exit "$failed"
