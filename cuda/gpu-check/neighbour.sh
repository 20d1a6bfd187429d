# The stage neighbour of gpu-check.sh, which sources this file.
# shellcheck shell=bash disable=SC2034,SC2154 # variables are shared with gpu-check.sh

# Memory of the neighbour process, and the share of it that must be visible: the driver counts in pages, and other
# processes may start and end.
readonly neighbour_bytes=20000000000 neighbour_seen=19000000000

# physical_free ADDRESS: prints the free bytes of the whole GPU, as a scheduler's only worker reports them.
physical_free() { fleet "$1" | grep -o '"physicalBytesFree":"[0-9]*"' | head -n 1 | tr -dc '0-9'; }

neighbour() {
  serve_models || { row FAIL neighbour "models/stories.gguf cannot be copied to $served"; return; }
  local at=127.0.0.1:17071 over=127.0.0.1:17070
  worker neighbour-worker "$at" --device cuda:0
  scheduler neighbour-scheduler "$over" "$at"
  if within 60 loads "$over"; then neighbour_comes "$over"; else row FAIL neighbour "no model is loaded: see $work/neighbour-worker.log"; fi
  stop_servers
}

neighbour_comes() {
  local before after=0 came now log=$work/neighbour.log
  before=$(physical_free "$1")
  if [[ -z $before ]]; then row FAIL neighbour 'the report has no physicalBytesFree'; return; fi
  if ((before < neighbour_bytes + 4000000000)); then row skip neighbour "$before bytes are free, too few for a neighbour"; return; fi
  "$out/cuda_bench_neighbour" "$neighbour_bytes" 120 >"$log" 2>&1 &
  servers[neighbour]=$!
  within 30 grep -q '^took' "$log" || { row FAIL neighbour "the neighbour takes nothing: see $log"; return; }
  # output: took BYTES at SECONDS-SINCE-1970.MILLISECONDS
  came=$(sed -n 's/^took .* at \([0-9]*\)\.\([0-9]*\)$/\1\2/p' "$log")
  for (( ; ; )); do
    after=$(physical_free "$1")
    now=$(date +%s%3N)
    ((before - ${after:-$before} < neighbour_seen && now - came < 10000)) || break
    sleep 0.05
  done
  local took=$((now - came)) change=$((before - ${after:-$before}))
  if ((change >= neighbour_seen && took <= 2000)); then row ok neighbour "$change bytes less are free in the report, $took ms after a neighbour took them"
  else row FAIL neighbour "$change bytes less are free in the report, $took ms after a neighbour took $neighbour_bytes; want it within 2000 ms"; fi
  neighbour_refused "$1" "$after"
}

# neighbour_refused ADDRESS BYTES: a model whose cache would fit without the neighbour must be refused, and the refusal
# must name the free bytes: about those of the report, minus what the load has allocated by then.
neighbour_refused() {
  local log=$work/neighbour-refusal.log report cache tokens number said=''
  report=$(fleet "$1")
  cache=$(grep -o '"bytesKv":"[0-9]*"' <<<"$report" | head -n 1 | tr -dc '0-9')
  tokens=$(($(number kvBlocks <<<"$report") * $(number blockSize <<<"$report")))
  if ((${cache:-0} == 0 || tokens == 0)); then row FAIL neighbour 'the report does not tell the size of the cache'; return; fi
  if "$bin/millrace" load twin --kv-tokens $((($2 + 8000000000) / (cache / tokens))) --target "$1" >"$log" 2>&1; then
    row FAIL neighbour "a model whose cache is 8 GB more than the $2 bytes that are free was loaded: see $log"
    return
  fi
  while read -r number; do
    ((number > $2 + 500000000 || number < $2 - 2000000000)) || said=$number
  done < <(grep -oE '[0-9]{9,}' "$log")
  if [[ -n $said ]]; then row ok neighbour "the next refusal says that $said bytes are free on the GPU"
  else row FAIL neighbour "the next refusal does not say that about $2 bytes are free on the GPU: see $log"; fi
}

# number NAME: prints the first number of this name in the JSON on standard input; 0 if there is none.
number() {
  local found
  found=$(grep -o "\"$1\":[0-9]*" | head -n 1)
  echo "${found##*:}" | grep . || echo 0
}
