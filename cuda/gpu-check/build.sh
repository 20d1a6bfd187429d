# The stages build and architectures of gpu-check.sh, which sources this file.
# shellcheck shell=bash disable=SC2034,SC2154 # variables are shared with gpu-check.sh

# The shipped architectures, as in cuda/CMakeLists.txt.
readonly shipped='80 86 89 90a 100 120'

# image CAPABILITY: prints the shipped architecture whose code a GPU of it runs: of the same generation, and not newer.
image() {
  local each best=
  [[ $1 == [0-9]*[0-9] ]] || return
  for each in $shipped; do
    ((${1%?} == ${each//[a-z]/} / 10 && ${1: -1} >= ${each//[a-z]/} % 10)) && best=$each
  done
  echo "$best"
}

# compilable ARCHITECTURE: succeeds if nvcc supports it. Some compilers list 90a separately and some do not.
compilable() { nvcc --list-gpu-arch | grep -qE "^compute_${1//[a-z]/}[af]?$"; }

# configured FOLDER ARCHITECTURES CMAKE-ARGUMENT ...: configures a build.
configured() {
  local folder=$1 architectures=$2
  shift 2
  cmake -S cuda -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Release "-DMILLRACE_CUDA_ARCHITECTURES=$architectures" "$@"
}

build() {
  local architectures=${ARCHITECTURES:-$(image "${gpu_capability//./}")}
  [[ -n $architectures ]] || { row FAIL build "no machine code ships for $gpu_name, compute capability $gpu_capability"; return; }
  # Required explicitly, so that cmake fails if GoogleTest is not found.
  try build configure configure configured "$out" "$architectures" -DMILLRACE_CUDA_TESTS=ON || return
  try build "compile for $architectures" compile cmake --build "$out"
}

architectures() {
  local each can='' own folder=$work/architectures
  for each in $shipped; do
    if compilable "$each"; then can+=${can:+;}$each; else row skip architectures "$each: nvcc $(nvcc_version) cannot"; fi
  done
  [[ -n $can ]] || { row FAIL architectures 'nvcc can compile for none of them'; return; }
  try architectures configure architectures-configure configured "$folder" "$can" \
    -DMILLRACE_CUDA_TESTS=OFF -DMILLRACE_CUDA_BENCH=OFF || return
  try architectures "compile the library for $can" architectures-compile cmake --build "$folder" --target millrace_cuda || return
  cuobjdump --list-elf "$folder/libmillrace_cuda.so" >"$work/architectures-images.log" 2>&1 ||
    { row FAIL architectures "cuobjdump cannot list the library: see $work/architectures-images.log"; return; }
  own=$(image "${gpu_capability//./}")
  for each in ${can//;/ }; do
    local images
    images=$(grep -c "[._]sm_$each\.cubin" "$work/architectures-images.log")
    if ((images == 0)); then row FAIL architectures "$each: the library has no machine code for it"
    elif [[ $each == "$own" ]]; then row ok architectures "$each: compiled ($images images); run on $gpu_name ($gpu_capability)"
    else row ok architectures "$each: compiled ($images images), not run"; fi
  done
}

nvcc_version() { nvcc --version | sed -n 's/.*release \([0-9.]*\).*/\1/p'; }
