#!/usr/bin/env bash
# gpu-check.sh [STAGE ...]: builds the CUDA engine on a GPU host and checks it. Without stages it runs all of them but
# faults:
#
#   build          the library for this GPU, its tests and benchmarks, with cmake and ninja
#   architectures  the library for every compute capability that ships and that this compiler supports, in its own folder
#   tests          every GoogleTest program but those of the stage alone, and the C program over the whole ABI; none may be missing
#   alone          the GoogleTest programs that need the GPUs alone: they count free memory, or are of faults, of several
#                  GPUs or of several streams
#   faults         only the tests in which driver calls fail on purpose, on one GPU
#   portable       on a Hopper GPU: the GEMMs and attention of other devices, built for 9.0 without wgmma
#   sanitizer      compute-sanitizer: memcheck of whole steps, leaks of the engine, memcheck and racecheck of the kernels
#                  on small shapes. Of Hopper's GEMMs it checks decode shapes of up to 150 tokens whose pipelines do not
#                  wrap around, because racecheck reports a race if lanes have read a stage, or written data for others,
#                  and one of them arrives at the mbarrier for the whole warp
#   conformance    the Go suite that every engine must pass, with the default settings, in f16, and with a bf16 cache
#   sameness       random scenarios of the step loop, with caches of f16, bf16 and f8: every request has the bits that it
#                  has alone
#   transformers   logprobs and greedy tokens as served, against Hugging Face's transformers in float32 with the same
#                  random weights, if a Python with torch and transformers is installed
#   families       a small model of every architecture on the CPU engine, as served, against transformers in float32 with
#                  the same random weights, with prompts around its window; a GPU is not used
#   generate       a story through scheduler and worker, twice, and the same from the worker alone, which must not
#                  allocate device memory during it
#   two            with two GPUs: models that both hold together, their speed and that of gathers against floors, the
#                  second GPU alone, one worker on both, and two workers under one scheduler, killed during streams
#   neighbour      how soon a worker's report shows memory that another process uses, and that refusals count it
#   invariance     the cost of batch invariance: the library against a build without it, which the scenarios of
#                  sameness must detect
#   bytes          device memory traffic of one decode step as ncu counts it, against the bytes that the step claims
#   phases         kernels, GEMMs and whole steps in microseconds, against floors
#   bench          tokens a second of random-weight models, with the roofs measured in the same run, against floors
#   served         a model through scheduler and worker: mixes against the engine alone and the GPU's idle time, long
#                  prompts that join, prefixes, cancelled calls, tenfold overload, two tenants, against floors
#   vectors        codebooks trained through a worker, against float64, and the device against its roofs
#   figures        the plain operations against the CPU's, copies and the pool, against floors
#
# Each check adds one line with its seconds to the table in $WORK (default build/gpu-check); stages that are run one by
# one add to the same table. `table` as the only argument prints it. Exits with 1 if any check failed. Needs nvcc, cmake,
# ninja and GoogleTest, no Go: programs come from bin/ (a bundle) or build/bin. Floors are those of
# bench/floors/NAME-OF-THE-GPU.txt.
#
# Stages that compare results and measure nothing (tests, portable, conformance, sameness, transformers, families and
# generate) run side by side if they follow one another, the host has CUDA's multi-process service and the GPU has 64 GB.
#
#   JOBS           parallel runs of compute-sanitizer (default: the processors, at most 15, on a GPU with 64 GB, 4 on a smaller
#                  one, and 1 if the GPU is in exclusive mode)
#   TESTS          GoogleTest programs that run side by side (default: half of the processors)
#   ARCHITECTURES  compute capabilities of the stage build (default: this GPU's, 9.0 as 90a)
#   SERVED         parts of the stage served, separated by spaces (default: engine mixes join prefix cancel overload
#                  fairness)
#   SERVED_MODEL   SHAPE:TYPE of its model (default: llama-8b:bf16, which alone has floors)
#   PYTHON         the interpreter of the stages transformers and families (default: python3)
#   TRANSFORMERS   SHAPE:TYPE:KV:OWN of each of its checks, separated by spaces; OWN is transformers' own type, f16 or
#                  bf16, to whose error the engine's is compared
#   FAMILIES       NAME:CONTEXT:PROMPTS of each small model of the stage families; see cuda/gpu-check/families.sh
#   BENCH          SHAPE:TYPE:KV:BATCHES:PROMPT of each benchmark, separated by spaces; KV default: a worker's default
# shellcheck disable=SC2034 # the stages' files use variables that are set here
set -uo pipefail
root=$(cd "$(dirname "$0")" && pwd -P)
[[ -f $root/cuda/CMakeLists.txt ]] || root=$(dirname "$root")
cd "$root" || exit 1
work=${WORK:-$root/build/gpu-check}
mkdir -p "$work/models" || exit 1
work=$(cd "$work" && pwd)
# Paths below the root are printed relative to it, so that kept results do not depend on the folder.
work=${work#"$PWD/"}
bin=bin
[[ -d $bin || ! -f bin.tar.xz ]] || tar -xJf bin.tar.xz
[[ -d $bin ]] || bin=build/bin
readonly root work bin out=$work/cuda models=$work/models table=$work/table.txt
# The first GPU is checked.
gpu_name=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1)
gpu_capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1)
gpu_mib=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits 2>/dev/null | head -n 1)
[[ $gpu_mib =~ ^[0-9]+$ ]] || gpu_mib=0
readonly gpu_name gpu_capability gpu_mib
most_jobs=4 exclusive=
((gpu_mib < 60000)) || most_jobs=15
JOBS=${JOBS:-$(($(nproc) < most_jobs ? $(nproc) : most_jobs))} TESTS=${TESTS:-$((($(nproc) + 1) / 2))}
[[ $(nvidia-smi --query-gpu=compute_mode --format=csv,noheader 2>/dev/null | head -n 1) != Exclusive* ]] || JOBS=1 exclusive=yes
((TESTS > 0)) || TESTS=1
readonly JOBS TESTS exclusive
failed=0

# A GPU at its power limit slows down, so rows of figures have the clock of its SMs. It is sampled twice a second.
# The stage sanitizer counts jobs, so this must not be one.
readonly clocks=$work/clocks-$$.log
sampler=
if command -v nvidia-smi >/dev/null; then
  nvidia-smi --query-gpu=clocks.sm,utilization.gpu --format=csv,noheader,nounits -lms 500 -i "${CUDA_VISIBLE_DEVICES:-0}" >"$clocks" 2>/dev/null &
  sampler=$!
  disown
fi
trap 'kill $(jobs -p) $sampler 2>/dev/null; unshare; rm -f "$clocks"' EXIT

# sm_clock STAGE: sets $clock. If the stage measures, it is the median of the samples since the last row in which the GPU
# worked, else empty.
clocked=0
sm_clock() {
  local samples
  clock=
  [[ -s $clocks ]] || return 0
  samples=$(tail -n +$((clocked + 1)) "$clocks")
  clocked=$(wc -l <"$clocks")
  case $1 in phases | bench | invariance | served | vectors | figures | two) ;; *) return 0 ;; esac
  clock=$(awk -F ', ' '$2 + 0 > 50 { print $1 }' <<<"$samples" | sort -n |
    awk '{ mhz[NR] = $1 } END { if (NR) printf ", SMs at %d MHz (%d..%d)", mhz[int((NR + 1) / 2)], mhz[1], mhz[NR] }')
}

# row RESULT STAGE WHAT [SECONDS]: adds a line to the table; SECONDS defaults to the time since the last line.
marked=$SECONDS
row() {
  sm_clock "$2"
  printf '%-4s  %-13s  %4d s  %s%s\n' "$1" "$2" "${4:-$((SECONDS - marked))}" "$3" "$clock" | tee -a "$table"
  marked=$SECONDS
  [[ $1 == ok || $1 == skip ]] || failed=1
}

# try STAGE WHAT LOG COMMAND ...: runs a command with its output in a log; prints the end of the log on failure. The command is a job, so
# that whoever ends this shell ends it too.
try() {
  local stage=$1 what=$2 log=$work/$3.log began=$SECONDS
  shift 3
  "$@" >"$log" 2>&1 &
  if wait "$!"; then
    row ok "$stage" "$what" $((SECONDS - began))
  else
    row FAIL "$stage" "$what: see $log" $((SECONDS - began))
    tail -n 15 "$log"
    return 1
  fi
}

# apart COMMAND ...: runs a function as a job, which fails if a row of it does, and which ends its own jobs when it ends.
apart() {
  (
    trap 'kill $(jobs -p) 2>/dev/null' EXIT
    failed=0 marked=$SECONDS
    "$@"
    exit "$failed"
  ) &
}

for part in "$root"/cuda/gpu-check/*.sh; do
  # shellcheck source=/dev/null
  source "$part" || exit 1
done

if [[ ${1:-} == table ]]; then
  cat "$table"
  ! grep -q '^FAIL' "$table"
  exit
fi
if (($# == 0)); then
  set -- build architectures tests portable conformance sameness transformers families generate alone sanitizer two neighbour bytes phases bench invariance served vectors figures
  rm -f "$table"
fi
for stage in "$@"; do
  case $stage in
    build | architectures | tests | alone | faults | portable | sanitizer | conformance | sameness | transformers | families | generate | two | neighbour | bytes | phases | bench | invariance | served | vectors | figures) ;;
    *) echo "unknown stage $stage" >&2; exit 2 ;;
  esac
done
# If two runs begin at once, one of them writes the head.
if (set -o noclobber; : >"$table") 2>/dev/null; then
  {
    printf 'gpu-check %s\n' "$(date -u +%Y-%m-%dT%H:%MZ)"
    nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv,noheader
    nvcc --version | grep release
  } >>"$table"
fi

while (($#)); do
  compared=()
  while (($#)) && comparing "$1"; do
    compared+=("$1")
    shift
  done
  marked=$SECONDS
  [[ ! -s $clocks ]] || clocked=$(wc -l <"$clocks")
  if ((${#compared[@]} > 0)); then together "${compared[@]}"; else "$1"; shift; fi
done
exit "$failed"
