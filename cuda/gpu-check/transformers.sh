# The stage transformers of gpu-check.sh, which sources this file: compares served results with another implementation.
# shellcheck shell=bash disable=SC2034,SC2154 # variables are shared with gpu-check.sh

# The largest comes first, because its file is written while the others are checked. A model is compared with
# transformers in the model's own type, or in bf16 for a bf16 cache, which is not a default.
readonly TRANSFORMERS=${TRANSFORMERS:-qwen3-8b:bf16:default:bf16 llama-1b:f16:default:f16 llama-1b:f16:bf16:bf16
  llama-1b:bf16:default:bf16 llama-1b:q8_0:default:f16 llama-1b:q4_k:default:f16 qwen2-1.5b:bf16:default:bf16}
# Device: cuda or, without a GPU and with a small shape, cpu; tokens of the prompt; tokens to generate.
readonly transformers_on=${TRANSFORMERS_ON:-cuda} transformers_prompt=300 transformers_tokens=48

transformers() {
  local python=${PYTHON:-python3} at=127.0.0.1:17075 each shape type kv own file case result text
  local -A writing=() judging=()
  local -a cases
  read -r -d '' -a cases <<<"$TRANSFORMERS"
  if ! "$python" -c 'import numpy, torch, transformers' 2>"$work/transformers-python.log"; then
    row skip transformers "$python lacks numpy, torch or transformers: see $work/transformers-python.log"
    return
  fi
  if [[ $transformers_on != cpu ]] && ! "$python" -c 'import torch; raise SystemExit(not torch.cuda.is_available())'; then
    row skip transformers "the torch of $python has no GPU"
    return
  fi
  for each in "${cases[@]}"; do
    IFS=: read -r shape type kv own <<<"$each"
    file=$models/$shape-$type.gguf
    [[ ! -s $file && -z ${writing[$file]:-} ]] || continue
    "$bin/millrace-bench" synth --shape "$shape" --type "$type" -o "$file" >"$work/transformers-synth-$shape-$type.log" 2>&1 &
    writing[$file]=$!
  done
  worker transformers-worker "$at" --device "${transformers_on/cuda/cuda:0}" --models "$models"
  # The first one is checked last, after the worker has released the GPU, because it may need most of it.
  for each in "${cases[@]:1}" "${cases[0]}"; do
    IFS=: read -r shape type kv own <<<"$each"
    file=$models/$shape-$type.gguf case=$work/transformers-$shape-$type-$kv
    [[ -z ${writing[$file]:-} ]] || wait "${writing[$file]}"
    if [[ ! -s $file ]]; then
      row FAIL transformers "$shape $type is not written: see $work/transformers-synth-$shape-$type.log"
      continue
    fi
    transformers_answers "$at" "$shape-$type" "$kv" "$case" || { row FAIL transformers "$each: see $case.log and $work/transformers-worker.log"; continue; }
    [[ $each != "${cases[0]}" ]] || stop_servers
    NVIDIA_TF32_OVERRIDE=0 PYTHONDONTWRITEBYTECODE=1 "$python" cuda/gpu-check/logprobs/check.py --device "$transformers_on" \
      --name "$shape $type, cache $kv" "$file" "$own" "$case-generated.json" "$case-replayed.json" >"$case.txt" 2>>"$case.log" &
    judging[$case]=$!
  done
  stop_servers
  for each in "${cases[@]}"; do
    IFS=: read -r shape type kv own <<<"$each"
    case=$work/transformers-$shape-$type-$kv
    [[ -n ${judging[$case]:-} ]] || continue
    wait "${judging[$case]}" || grep -q '^FAIL' "$case.txt" || row FAIL transformers "$each: see $case.log"
    while read -r result text; do row "$result" transformers "$text"; done <"$case.txt"
  done
  # Delete only files that this stage wrote.
  ((${#writing[@]} == 0)) || rm -f "${!writing[@]}"
}

# transformers_answers ADDRESS MODEL KV CASE: the worker's answers for a prompt and the greedy tokens after it, and for
# the same prompt computed by the decode kernels.
transformers_answers() {
  local ids options=() ask
  ids=$(awk -v n="$transformers_prompt" 'BEGIN { for (i = 1; i <= n; ++i) printf "%s%d", (i > 1 ? "," : ""), (i * 7919 + 101) % 32000 }')
  [[ $3 == default ]] || options=(--kv-type "$3")
  within 30 "$bin/millrace" health --target "$1" >"$4.log" 2>&1 || return
  "$bin/millrace" load "$2" --kv-tokens 4096 "${options[@]}" --target "$1" >>"$4.log" 2>&1 || return
  ask=("$bin/millrace" generate --model "$2" --target "$1" --json --token-ids "$ids" --no-prefix-cache --echo-prompt --prompt-logprobs 8)
  "${ask[@]}" --temperature 0 --max-tokens "$transformers_tokens" --ignore-eos --output-logprobs --output-candidates 8 \
    >"$4-generated.json" 2>>"$4.log" || return
  "${ask[@]}" --max-tokens 0 --prompt-class decode >"$4-replayed.json" 2>>"$4.log" || return
  "$bin/millrace" unload "$2" --target "$1" >>"$4.log" 2>&1
}
