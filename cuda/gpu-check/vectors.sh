# The stage vectors of gpu-check.sh, which sources this file.
# shellcheck shell=bash disable=SC2034,SC2154 # variables are shared with gpu-check.sh

# Codebooks through a worker, and against their roofs.
vectors() {
  local at=127.0.0.1:17071 line size
  mkdir -p "$work/codebooks" "$served"
  worker vectors "$at" --device cuda:0 --codebooks "$work/codebooks"
  if within 30 "$bin/millrace" health --target "$at" >>"$work/vectors-health.log" 2>&1; then
    for size in '' --large; do
      try vectors "the document's ${size:+large }test: every bit that float64 gives" "vectors-selftest$size" \
        "$bin/millrace" vectors selftest $size --target "$at"
    done
  else
    row FAIL vectors "the worker does not serve: see $work/vectors.log"
  fi
  stop_servers
  try vectors 'assignment beside its roofs' vectors-assign "$out/cuda_bench_vector_assign" || return
  while read -r line; do row ok vectors "$line" 0; done < <(grep -E '^(matrix|f16|f32|PQ)' "$work/vectors-assign.log" | tr -s ' ')
  local floors options=()
  floors=$(floors_file)
  [[ -z $floors ]] || ! grep -q '^vectors ' "$floors" || options=(--floors "$floors")
  try vectors "millrace-bench vectors${options:+, floors of $floors}" vectors-bench "$bin/millrace-bench" vectors --device gpu \
    --engine-path "$out" --budget 1s --repeat 3 "${options[@]}" --save "$work/vectors.json"
}
