# The stages generate, two and neighbour of gpu-check.sh, which sources this file: workers and schedulers on loopback.
# shellcheck shell=bash disable=SC2034,SC2154 # variables are shared with gpu-check.sh

# Process ids of the servers by name; $work/NAME.log is the log of each.
declare -A servers=()

# worker NAME ADDRESS ARGUMENT ...
worker() {
  local name=$1 address=$2
  shift 2
  MILLRACE_ENGINE_PATH=$out "$bin/millrace-worker" --worker-id "$name" --listen "$address" --models "$served" "$@" >"$work/$name.log" 2>&1 &
  servers[$name]=$!
}

# scheduler NAME ADDRESS WORKERS ARGUMENT ...
scheduler() {
  local name=$1 address=$2 workers=$3
  shift 3
  "$bin/millrace-scheduler" --listen "$address" --workers "$workers" "$@" >"$work/$name.log" 2>&1 &
  servers[$name]=$!
}

stop_servers() {
  ((${#servers[@]})) || return 0
  kill "${servers[@]}" 2>/dev/null
  wait "${servers[@]}" 2>/dev/null
  servers=()
}

kill_server() {
  kill -9 "${servers[$1]}"
  wait "${servers[$1]}" 2>/dev/null
  unset "servers[$1]"
}

stop_server() {
  kill "${servers[$1]}" 2>/dev/null
  wait "${servers[$1]}" 2>/dev/null
  unset "servers[$1]"
}

# within SECONDS COMMAND ...: retries until the command succeeds.
within() {
  local until=$((SECONDS + $1))
  shift
  until "$@"; do
    ((SECONDS < until)) || return 1
    sleep 0.1
  done
}

# loads ADDRESS ARGUMENT ...: makes a server load the shipped model.
loads() { "$bin/millrace" load stories --target "$@" >>"$work/load.log" 2>&1; }

# story ADDRESS: prints a story, which has the same words each time.
story() {
  "$bin/millrace" generate -m stories 'Once upon a time' --max-tokens 64 --seed 1 --temperature 0.8 --target "$1" 2>>"$work/generate.log"
}

# fleet ADDRESS: prints the workers of a scheduler, as JSON without spaces.
fleet() { "$bin/millrace" workers --once --json --target "$1" 2>>"$work/fleet.log" | tr -d ' \n'; }

# The folder of models that the workers serve: the shipped model under two names.
served=$work/served
readonly served
serve_models() { mkdir -p "$served" && cp models/stories.gguf "$served/stories.gguf" && cp models/stories.gguf "$served/twin.gguf"; }

generate() {
  serve_models || { row FAIL generate "models/stories.gguf cannot be copied to $served"; return; }
  local at=127.0.0.1:17071 over=127.0.0.1:17070 counts=$work/allocations.log ready=0 first again alone
  rm -f "$counts"
  MILLRACE_ALLOCATIONS=$counts LD_PRELOAD=$out/libcuda_allocations.so MILLRACE_ENGINE_PATH=$out \
    "$bin/millrace-worker" --listen "$at" --device cuda:0 --models "$served" >"$work/worker.log" 2>&1 &
  servers[worker]=$!
  scheduler scheduler "$over" "$at"
  within 60 loads "$over"
  [[ ! -s $counts ]] || ready=$(wc -l <"$counts")
  first=$(story "$over")
  again=$(story "$over")
  alone=$(story "$at")
  if ((ready > 0)) && [[ $(wc -l <"$counts") == "$ready" ]]; then
    row ok generate "$ready allocations by the driver until READY, none after"
  else
    row FAIL generate "$ready allocations by the driver until READY, $(wc -l <"$counts") in all: see $counts"
  fi
  stop_servers
  if [[ ${#first} -gt 40 && $first == "$again" && $first == "$alone" ]]; then
    row ok generate "the same story three times: ${first:0:60}..."
  else
    row FAIL generate "stories differ or are empty: see $work/generate.log, worker.log, scheduler.log"
  fi
}
