# The stage families of gpu-check.sh, which sources this file: every architecture on the CPU engine, against transformers.
# shellcheck shell=bash disable=SC2034,SC2154 # variables are shared with gpu-check.sh

# NAME:CONTEXT:PROMPTS of each small model of random F32 weights; CONTEXT default is the model's own, and NAME-short is NAME
# with another one. Windows are of 24 tokens, and prompts shorter, as long and longer. With LongRoPE the factors depend on the
# context that is served, and in transformers on the length of the sequence.
readonly FAMILIES=${FAMILIES:-llama mistral qwen2 qwen3 gemma2 gemma3 gemma4-dense gemma4-e2b gemma-embedding olmo2 olmo2-plain olmo3
  smollm3 granite exaone4 seed_oss phi3:512:300 phi3-short:256 phi3-window glm4 mistral3
  mixtral qwen2moe qwen3moe olmoe granitemoe granitemoe-plain ernie4_5-moe glm4moe dots1 minimax-m2 gpt-oss gpt-oss-yarn
  gemma4-experts qwen3next qwen35 qwen35moe lfm2 lfm2moe deepseek2 deepseek2-groups deepseek2-lite}
readonly families_prompts='10 24 60 130' families_tokens=64 families_vectors=gemma-embedding # makes vectors alone

# Seeds of weights other than 1. With it, an expert of gpt-oss was chosen by a lead of 7e-6 at one position, which rounding in float32
# turns around in transformers.
readonly -A families_seeds=([gpt-oss]=2)

families() {
  local python=${PYTHON:-python3} at=127.0.0.1:17074 folder=$work/families result text answered=yes
  families_answers "$at" "$folder" || answered=no
  stop_servers
  if [[ $answered == no ]]; then
    row FAIL families "no answers: see $folder/answers.log and $work/families-worker.log"
    return
  fi
  if ! "$python" -c 'import numpy, torch, transformers' 2>"$work/families-python.log"; then
    row skip families "$python lacks numpy, torch or transformers: see $work/families-python.log"
    return
  fi
  PYTHONDONTWRITEBYTECODE=1 "$python" cuda/gpu-check/logprobs/families.py "$folder" >"$folder/verdicts.txt" 2>"$folder/verdicts.log" ||
    grep -q '^FAIL' "$folder/verdicts.txt" || row FAIL families "see $folder/verdicts.log"
  while read -r result text; do row "$result" families "$text"; done <"$folder/verdicts.txt"
}

# families_answers ADDRESS FOLDER: writes the models, a worker's answers to each prompt and vectors of the prompts into a folder.
families_answers() {
  local name context prompts each n pooling texts log=$2/answers.log
  local -a cases
  mkdir -p "$2"
  : >"$log"
  read -r -d '' -a cases <<<"$FAMILIES"
  for each in "${cases[@]}"; do
    name=${each%%:*}
    "$bin/millrace-bench" synth --shape "small-${name%-short}" --type f32 --seed "${families_seeds[$name]:-1}" -o "$2/$name.gguf" \
      >>"$log" 2>&1 || return
  done
  worker families-worker "$1" --device cpu --models "$2"
  within 30 "$bin/millrace" health --target "$1" >>"$log" 2>&1 || return
  for each in "${cases[@]}"; do
    IFS=: read -r name context prompts <<<"$each:"
    [[ ${context:-default} == default ]] && context=256
    "$bin/millrace" load "$name" --context "$context" --kv-tokens 2048 --target "$1" >>"$log" 2>&1 || return
    prompts=${prompts%:} texts=()
    for n in ${prompts:-$families_prompts}; do
      texts+=("$(families_ids "$n")")
      [[ $name == "$families_vectors" ]] || families_answer "$1" "$name" "${texts[-1]}" "$2/$name-$n" 2>>"$log" || return
    done
    printf '%s\n' "${texts[@]}" >"$2/$name-prompts.txt"
    for pooling in first mean last; do
      "$bin/millrace" embed --model "$name" --target "$1" --token-ids --pooling "$pooling" --normalize=false "${texts[@]}" \
        >"$2/$name-$pooling.jsonl" 2>>"$log" || return
    done
    "$bin/millrace" unload "$name" --target "$1" >>"$log" 2>&1 || return
  done
}

# families_ids LENGTH: token ids below the vocabulary, separated by commas.
families_ids() {
  awk -v n="$1" 'BEGIN { for (i = 1; i <= n; ++i) printf "%s%d", (i > 1 ? "," : ""), (i * 7919 + i * i * 31 + 101) % 211 }'
}

# families_answer ADDRESS MODEL IDS FILE: the answer to a prompt with greedy tokens after it, and to the same prompt computed
# by the decode kernels.
families_answer() {
  local ask=("$bin/millrace" generate --model "$2" --target "$1" --json --token-ids "$3" --no-prefix-cache --echo-prompt --prompt-logprobs 8)
  "${ask[@]}" --temperature 0 --max-tokens "$families_tokens" --ignore-eos --output-logprobs --output-candidates 8 >"$4-generated.json" || return
  "${ask[@]}" --max-tokens 0 --prompt-class decode >"$4-replayed.json"
}
