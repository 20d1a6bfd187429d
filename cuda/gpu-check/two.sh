# The stage two of gpu-check.sh, which sources this file.
# shellcheck shell=bash disable=SC2034,SC2154 # variables are shared with gpu-check.sh

two() {
  local gpus
  gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')
  ((gpus >= 2)) || { row skip two "$gpus GPU here, two are wanted"; return; }
  serve_models || { row FAIL two "models/stories.gguf cannot be copied to $served"; return; }
  # The driver's numbers are nvidia-smi's.
  export CUDA_DEVICE_ORDER=PCI_BUS_ID
  MILLRACE_ENGINE_PATH=$out try two "the worker's self-test on cuda:1" selftest-cuda1 "$bin/millrace-worker" --self-test --device cuda:1
  [[ ! -x $out/cuda_engine_two_devices_test ]] ||
    try two 'copies between contexts: cuda_engine_two_devices_test' two-devices "$out/cuda_engine_two_devices_test"
  two_together
  two_served
  stop_servers
  unset CUDA_DEVICE_ORDER
}

# Models that both GPUs hold together: the bits of one, the contract's suite, and how long gathers take.
two_together() {
  if [[ -x $out/cuda_engine_divided_test ]]; then
    try two 'models divided between both have the bits of one: cuda_engine_divided_test' two-divided "$out/cuda_engine_divided_test"
  fi
  if [[ -x $out/cuda_engine_fault_divided_test ]]; then
    try two 'one that fails or is lost ends the steps of both: cuda_engine_fault_divided_test' two-fault "$out/cuda_engine_fault_divided_test"
  fi
  if [[ -x $bin/native.test ]]; then
    MILLRACE_TEST_CUDA_ENGINE=$out MILLRACE_TEST_CUDA_DEVICE=cuda:0,1 try two 'Go suite on both together' two-conformance \
      "$bin/native.test" -test.run 'TheCUDAEngine(KeepsTheContract$|With)' -test.timeout 9m -test.v
  fi
  try two 'gathers between both' two-gathers "$out/cuda_bench_gather"
}

# The second GPU by itself, then both, then the second again.
two_served() {
  local at_0=127.0.0.1:17071 at_1=127.0.0.1:17072 over_1=127.0.0.1:17070 over=127.0.0.1:17073 uuid tale
  uuid=$(nvidia-smi -L | sed -n '2s/.*UUID: \([^)]*\)).*/\1/p')
  worker two-1 "$at_1" --device cuda:1
  scheduler two-alone "$over_1" "$at_1"
  within 60 loads "$over_1" || { row FAIL two "no model on cuda:1: see $work/two-1.log"; return; }
  tale=$(story "$over_1")
  if ((${#tale} <= 40)); then row FAIL two "no story from cuda:1: see $work/generate.log, two-1.log"; return; fi
  if [[ -n $uuid && $(fleet "$over_1") == *"\"uuid\":\"$uuid\""* ]]; then row ok two "a worker on cuda:1 alone serves from $uuid"
  else row FAIL two "the worker on cuda:1 does not report the GPU $uuid"; fi

  worker two-together "$at_0" --device cuda:0,1
  scheduler two-over-both "$over" "$at_0"
  within 60 loads "$over" || { row FAIL two "no model on cuda:0,1: see $work/two-together.log"; return; }
  if [[ $(story "$over") == "$tale" ]]; then row ok two 'a worker on cuda:0,1 tells the story of cuda:1'
  else row FAIL two "a worker on cuda:0,1 tells another story than cuda:1: see $work/generate.log, two-together.log"; fi
  stop_server two-over-both
  stop_server two-together

  worker two-0 "$at_0" --device cuda:0
  scheduler two-both "$over" "$at_0,$at_1"
  within 60 loads "$over" --replicas 2 || { row FAIL two "no model on both: see $work/two-0.log"; return; }
  two_share "$over" "$tale" || return
  two_lose "$over" "$at_1" "$tale"
}

# served_by NAME: how many stories a worker ended.
served_by() { grep 'finished call' "$work/$1.log" | grep 'grpc.method=Generate' | grep -c 'grpc.code=OK'; }

# two_share ADDRESS STORY: stories at once go to both and are the same.
two_share() {
  local i began_0 began_1 others waits=()
  began_0=$(served_by two-0) began_1=$(served_by two-1)
  for ((i = 0; i < 32; i++)); do
    story "$1" >"$work/two-story-$i.txt" &
    waits+=($!)
  done
  wait "${waits[@]}"
  others=0
  for ((i = 0; i < 32; i++)); do [[ $(cat "$work/two-story-$i.txt") == "$2" ]] || others=$((others + 1)); done
  local by_0=$(($(served_by two-0) - began_0)) by_1=$(($(served_by two-1) - began_1))
  if ((others == 0 && by_0 > 0 && by_1 > 0)); then row ok two "32 stories at once: $by_0 from cuda:0, $by_1 from cuda:1, all the same"
  else row FAIL two "32 stories at once: $by_0 from cuda:0, $by_1 from cuda:1, $others differ: see $work/generate.log"; return 1; fi
}

# one_lost ADDRESS: the scheduler counts one worker as connected.
one_lost() { [[ $(fleet "$1" | grep -o '"connected":true' | wc -l) == 1 ]]; }

# two_lose SCHEDULER SURVIVOR STORY: cuda:0's worker is killed while the other tells stories.
two_lose() {
  local i lost_after good=0 bad
  for ((i = 0; i < 40; i++)); do [[ $(story "$2") == "$3" ]] || echo "story $i differs"; done >"$work/two-survivor.log" &
  local teller=$!
  sleep 0.2
  kill -9 "${servers[two-0]}"
  wait "${servers[two-0]}" 2>/dev/null
  unset 'servers[two-0]'
  local began=$SECONDS
  within 30 one_lost "$1" || { row FAIL two "the scheduler has not noticed for 30 s that a worker was killed: see $work/two-both.log"; return; }
  lost_after=$((SECONDS - began))
  for ((i = 0; i < 8; i++)); do [[ $(story "$1") != "$3" ]] || good=$((good + 1)); done
  wait "$teller"
  bad=$(wc -l <"$work/two-survivor.log")
  if ((good == 8 && bad == 0)); then
    row ok two "the worker on cuda:0 killed, noticed within $((lost_after + 1)) s: cuda:1 told 40 stories meanwhile and 8 through the scheduler after"
  else
    row FAIL two "the worker on cuda:0 killed: $bad of 40 stories of cuda:1 differ, $good of 8 after: see $work/generate.log, two-both.log"
  fi
}
