#!/usr/bin/env bash
# gpu-check.sh [STAGE ...]: builds the CUDA engine on a GPU host and proves it. Without stages it runs all of them but faults:
#
#   build          the library for this GPU, its tests and benchmarks with cmake and ninja
#   architectures  the library for every compute capability that ships and this compiler can, in a folder of its own
#   tests          every GoogleTest program, and the C program over the whole ABI; none may be missing
#   faults         those of the tests alone in which the driver refuses
#   portable       the products of devices other than Hopper, built for 9.0 without what only that has, where this is one
#   sanitizer      compute-sanitizer: memcheck of whole steps, what the engine leaks, memcheck and racecheck of the kernels on
#                  small shapes; of the products of Hopper on those of decoding, of up to 64 tokens whose rings do not wrap:
#                  racecheck takes it for a race when lanes have read a stage, or written what others read, and one of them
#                  arrives at the mbarrier for the warp
#   conformance    the Go suite that every engine passes, as served by default, in f16 alone, and with a cache of bf16
#   sameness       random scenarios of the step loop, with caches of f16, bf16 and f8: the bits of every request alone
#   transformers   logprobs and greedy tokens as served, beside Hugging Face's transformers in float32 on the same random weights, where
#                  a Python with torch and transformers is
#   generate       a story through scheduler and worker, twice, and the same from the worker alone, which asks the driver for no
#                  memory meanwhile
#   two            where there are two GPUs: models that both hold together, their speed and that of gathers under floors, the second by
#                  itself, a worker on both and one on each under one scheduler, killed amid streams
#   neighbour      how soon a worker's report shows what another process took of its GPU, and that a refusal counts with it
#   invariance     what it costs that a row's sums do not depend on the batch: the library beside a build whose sums may, which the
#                  scenarios of sameness must find out
#   bytes          what ncu counts of one decode step in device memory, beside the bytes that the step claims to read
#   phases         kernels, products and whole steps by microseconds, under floors
#   bench          tokens a second of random-weight models, with the roofs measured beside them, under floors
#   served         an 8B model through scheduler and worker: mixes beside the engine alone and how idle the GPU is meanwhile, long
#                  prompts that join, prefixes, cancelled calls, ten times too many calls, two tenants, under floors
#   vectors        codebooks trained through a worker, against float64, and the device beside its roofs
#   figures        the plain operations beside the CPU's, copies and the pool, under floors
#
# One line a check, with its seconds, goes to the table in $WORK (default build/gpu-check), which stages run one by one add to;
# `table` as the only argument prints it. Ends with 1 if any check failed. Needs nvcc, cmake, ninja and GoogleTest, no Go:
# programs come from bin/ (a bundle) or build/bin. Floors are those of bench/floors/NAME-OF-THE-GPU.txt.
#
#   JOBS           runs of compute-sanitizer at once (default: 4, and 1 where the GPU takes one process alone)
#   ARCHITECTURES  compute capabilities of the stage build (default: this GPU's, 9.0 as 90a)
#   SERVED         parts of the stage served, divided by spaces (default: engine mixes join prefix cancel overload fairness)
#   PYTHON         the interpreter of the stage transformers (default: python3)
#   TRANSFORMERS   SHAPE:TYPE:KV:OWN of each of its checks, divided by spaces; OWN is transformers' own type, f16 or bf16, beside
#                  which errors are held
#   BENCH          SHAPE:TYPE:KV:BATCHES:PROMPT of each benchmark, divided by spaces; KV default: what a worker takes
# shellcheck disable=SC2034 # the stages' files use what stands here
set -uo pipefail
root=$(cd "$(dirname "$0")" && pwd -P)
[[ -f $root/cuda/CMakeLists.txt ]] || root=$(dirname "$root")
cd "$root" || exit 1
work=${WORK:-$root/build/gpu-check}
mkdir -p "$work/models" || exit 1
work=$(cd "$work" && pwd)
# Below the root paths are told from there, so that what is kept of a run does not depend on where it was.
work=${work#"$PWD/"}
bin=bin
[[ -d $bin || ! -f bin.tar.gz ]] || tar -xzf bin.tar.gz
[[ -d $bin ]] || bin=build/bin
readonly root work bin out=$work/cuda models=$work/models table=$work/table.txt
JOBS=${JOBS:-4}
[[ $(nvidia-smi --query-gpu=compute_mode --format=csv,noheader 2>/dev/null | head -n 1) != Exclusive* ]] || JOBS=1
readonly JOBS
# The first GPU is the one that is checked.
gpu_name=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1)
gpu_capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1)
readonly gpu_name gpu_capability
failed=0

# row RESULT STAGE WHAT [SECONDS]: one line of the table; without seconds, those since the last line.
marked=$SECONDS
row() {
  printf '%-4s  %-13s  %4d s  %s\n' "$1" "$2" "${4:-$((SECONDS - marked))}" "$3" | tee -a "$table"
  marked=$SECONDS
  [[ $1 == ok || $1 == skip ]] || failed=1
}

# try STAGE WHAT LOG COMMAND ...: runs a command into a log; its end is shown where it fails.
try() {
  local stage=$1 what=$2 log=$work/$3.log began=$SECONDS
  shift 3
  if "$@" >"$log" 2>&1; then
    row ok "$stage" "$what" $((SECONDS - began))
  else
    row FAIL "$stage" "$what: see $log" $((SECONDS - began))
    tail -n 15 "$log"
    return 1
  fi
}

for part in "$root"/cuda/gpu-check/*.sh; do
  # shellcheck source=/dev/null
  source "$part" || exit 1
done
trap 'kill $(jobs -p) 2>/dev/null' EXIT

if [[ ${1:-} == table ]]; then
  cat "$table"
  ! grep -q '^FAIL' "$table"
  exit
fi
if (($# == 0)); then
  set -- build architectures tests portable sanitizer conformance sameness transformers generate two neighbour bytes phases bench invariance served vectors figures
  rm -f "$table"
fi
for stage in "$@"; do
  case $stage in
    build | architectures | tests | faults | portable | sanitizer | conformance | sameness | transformers | generate | two | neighbour | bytes | phases | bench | invariance | served | vectors | figures) ;;
    *) echo "unknown stage $stage" >&2; exit 2 ;;
  esac
done
# One of two that begin at once writes the head.
if (set -o noclobber; : >"$table") 2>/dev/null; then
  {
    printf 'gpu-check %s\n' "$(date -u +%Y-%m-%dT%H:%MZ)"
    nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv,noheader
    nvcc --version | grep release
  } >>"$table"
fi
for stage in "$@"; do
  marked=$SECONDS
  "$stage"
done
exit "$failed"
