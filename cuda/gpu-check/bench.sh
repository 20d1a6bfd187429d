# The stages bytes, bench and figures of gpu-check.sh, which sources this file.
# shellcheck shell=bash disable=SC2034,SC2154 # variables are shared with gpu-check.sh

# If BENCH is set, rows with floors that are not run do not count as missing.
bench_chosen=${BENCH:+yes}
readonly bench_chosen BENCH=${BENCH:-llama-8b:bf16:default:1,8,64,128,256:128 llama-8b:q8_0:default:1,8,64,128,256:128
  llama-8b:q4_k:default:1,8,64,128,256:128 llama-8b:q4_k_m:default:1,8,64,128,256:128
  llama-1b:bf16:default:1,8,64:128 llama-1b:q8_0:default:1:128 llama-1b:q4_k:default:1:128
  llama-8b:bf16:default:1:64 llama-8b:bf16:default:1:512 llama-8b:q8_0:default:1:512 llama-8b:q4_k:default:1:512
  llama-8b:bf16:default:1:4096 llama-8b:q8_0:default:1:4096 llama-8b:q4_k:default:1:4096}

# floors_file: prints the file of floors named after this GPU; nothing if there is none.
floors_file() {
  local each name=${gpu_name// /-}
  for each in bench/floors/*.txt; do
    [[ $(basename "$each" .txt | tr '[:upper:]' '[:lower:]') != $(tr '[:upper:]' '[:lower:]' <<<"$name") ]] || echo "$each"
  done
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

# random_model SHAPE TYPE: prints the file of a model of random weights, and makes it if needed.
random_model() {
  local file=$models/$1-$2.gguf
  [[ -s $file ]] || "$bin/millrace-bench" synth --shape "$1" --type "$2" -o "$file" >"$work/synth-$1-$2.log" 2>&1
  echo "$file"
}

# engine_figures STAGE KEY LOG ARGUMENT ...: runs `millrace-bench engine` with the floors of rows below KEY, if this GPU
# has any; writes LOG.log and LOG.json.
engine_figures() {
  local stage=$1 key=$2 log=$3 line floors options=()
  shift 3
  floors=$(floors_file)
  [[ -z $floors ]] || ! grep -q "^engine $key/" "$floors" || options+=(--floors "$floors")
  if "$bin/millrace-bench" engine --engine-path "$out" "${options[@]}" --repeat 3 --roof-time 200ms --save "$log.json" "$@" \
    >"$log.log" 2>&1; then
    row ok "$stage" "$key: $(grep -m 1 '^load ' "$log.log" | tr -s ' ')"
    while read -r line; do row ok "$stage" "$key: $line"; done < <(grep -E '^ +(prefill|decode) ' "$log.log" | tr -s ' ')
  else
    row FAIL "$stage" "$key: see $log.log"
    tail -n 15 "$log.log"
    return 1
  fi
}

bench() {
  local each shape type kv batches prompt file log tokens memory floors key options
  floors=$(floors_file)
  for each in $BENCH; do
    IFS=: read -r shape type kv batches prompt <<<"$each"
    # A worker's default on a GPU is f16; the program reports it, and its floors are under that name.
    file=$(random_model "$shape" "$type") key=$shape-$type/${kv/default/f16}/$prompt log=$work/bench-$shape-$type-${kv/default/f16}-$prompt
    tokens=64
    ((prompt > 128)) && tokens=8
    options=()
    [[ $kv == default ]] || options=(--kv "$kv")
    engine_figures bench "$key" "$log" --device gpu --model "$file" "${options[@]}" --batch "$batches" --prompt "$prompt" \
      --tokens "$tokens" || continue
    memory=$(grep -m 1 '^memory ' "$log.log" | tr -s ' ')
    if [[ $memory =~ host\ 0\. ]]; then row ok bench "$key: $memory"; else row FAIL bench "$key: $memory, want below 1 GB"; fi
  done
  if [[ -z $floors ]]; then row skip bench "no floors for $gpu_name in bench/floors"; return; fi
  [[ -z $bench_chosen ]] || return 0
  while read -r key; do
    [[ -s $work/bench-${key//\//-}.log ]] || row FAIL bench "$key: has floors and is not run"
  done < <(awk '$1 == "engine" && $2 !~ /@/ { split($2, part, "/"); print part[1] "/" part[2] "/" part[3] }' "$floors" | sort -u)
}

# Each command prints its table and fails below a floor.
figures() {
  local each floors options=()
  floors=$(floors_file)
  if [[ -n $floors ]]; then options=(--floors "$floors"); else row skip figures "no floors for $gpu_name in bench/floors"; fi
  for each in ops memory; do
    try figures "millrace-bench $each${floors:+, floors of $floors}" "figures-$each" \
      "$bin/millrace-bench" "$each" --device gpu --engine-path "$out" "${options[@]}" --save "$work/$each.json"
  done
}
