# The stage two of gpu-check.sh, which sources this file.
# shellcheck shell=bash disable=SC2034,SC2154 # variables are shared with gpu-check.sh

two() {
  local gpus
  gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')
  ((gpus >= 2)) || { row skip two "$gpus GPU here, two are wanted"; return; }
  serve_models || { row FAIL two "models/stories.gguf cannot be copied to $served"; return; }
  # Make the driver's device numbers equal nvidia-smi's.
  export CUDA_DEVICE_ORDER=PCI_BUS_ID
  MILLRACE_ENGINE_PATH=$out try two "the worker's self-test on cuda:1" selftest-cuda1 "$bin/millrace-worker" --self-test --device cuda:1
  [[ ! -x $out/cuda_engine_two_devices_test ]] ||
    try two 'copies between contexts: cuda_engine_two_devices_test' two-devices "$out/cuda_engine_two_devices_test"
  two_together
  two_served
  stop_servers
  unset CUDA_DEVICE_ORDER
}

# Models that both GPUs hold together: the bits of one GPU, the conformance suite, and the time of gathers.
two_together() {
  if [[ -x $out/cuda_engine_divided_test ]]; then
    try two 'models divided between both have the bits of one: cuda_engine_divided_test' two-divided "$out/cuda_engine_divided_test"
  fi
  if [[ -x $out/cuda_engine_divided_experts_test ]]; then
    try two 'experts divided between both have the bits of one: cuda_engine_divided_experts_test' two-divided-experts \
      "$out/cuda_engine_divided_experts_test"
  fi
  if [[ -x $out/cuda_engine_fault_divided_test ]]; then
    try two 'one that fails ends the steps of both: cuda_engine_fault_divided_test' two-fault "$out/cuda_engine_fault_divided_test"
  fi
  if [[ -x $bin/native.test ]]; then
    MILLRACE_TEST_CUDA_ENGINE=$out MILLRACE_TEST_CUDA_DEVICE=cuda:0,1 try two 'Go suite on both together' two-conformance \
      "$bin/native.test" -test.run 'TheCUDAEngine(KeepsTheContract$|With)' -test.timeout 9m -test.v
  fi
  if [[ -x $bin/sametest.test ]]; then
    MILLRACE_TEST_CUDA_ENGINE=$out MILLRACE_TEST_CUDA_DEVICE=cuda:0,1 try two 'scenarios of the step loop on both together' two-sameness \
      "$bin/sametest.test" -test.run TestCUDAEnginesTogether -test.timeout 9m30s -test.v
  fi
  if try two 'gathers between both' two-gathers "$out/cuda_bench_gather"; then
    gather_figures "$work/two-gathers.log" >"$work/two.txt"
    hold two gathers "$work/two.txt" '^gather/'
  fi
  engine_figures two llama-8b-bf16@2/f16/128 "$work/two-bench" --device cuda:0,1 --model "$(random_model llama-8b bf16)" --batch 1,8 \
    --prompt 128 --tokens 64
}

# gather_figures FILE: prints the first times of its lines `SIZE KiB HALVES WHOLE ...` as `gather/SIZEKiB us HALVES`.
gather_figures() { awk '$2 == "KiB" { printf "gather/%sKiB us %s\n", $1, $3 }' "$1"; }

# The second GPU alone, then both, then the second again.
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
  two_lose_together "$over" "$at_0,$at_1" "$tale"

  worker two-0 "$at_0" --device cuda:0
  scheduler two-both "$over" "$at_0,$at_1"
  within 60 loads "$over" --replicas 2 || { row FAIL two "no model on both: see $work/two-0.log"; return; }
  two_share "$over" "$tale" || return
  two_lose "$over" "$at_1" "$tale"
}

# two_lose_together SCHEDULER WORKERS STORY: the worker on cuda:0,1 is killed while it and cuda:1's worker stream stories.
# The stories must continue with the same words. No stream may change its class: the scheduler refuses that.
two_lose_together() {
  local i k others moved lost_after began waits=()
  rm -f "$work"/two-moved-*.log
  scheduler two-beside "$1" "$2" --inexact-failover refuse
  if ! within 60 loads "$1" --replicas 2; then
    row FAIL two "no model on cuda:0,1 and cuda:1 at once: see $work/load.log, two-beside.log"
    stop_server two-together
    stop_server two-beside
    return
  fi
  for ((i = 0; i < 32; i++)); do
    for ((k = 0; k < 30; k++)); do [[ $(story "$1") == "$3" ]] || echo "story $k of $i differs"; done >"$work/two-moved-$i.log" &
    waits+=($!)
  done
  sleep 0.5
  kill_server two-together
  began=$SECONDS
  if ! within 30 one_lost "$1"; then
    row FAIL two "the scheduler has not noticed for 30 s that the worker on cuda:0,1 was killed: see $work/two-beside.log"
  fi
  lost_after=$((SECONDS - began))
  wait "${waits[@]}"
  others=$(cat "$work"/two-moved-*.log | wc -l)
  moved=$(grep -c 'resumes=[1-9]' "$work/two-beside.log")
  stop_server two-beside
  if ((others == 0 && moved > 0)); then
    row ok two "the worker on cuda:0,1 killed, noticed within $((lost_after + 1)) s: $moved of 960 stories went on on cuda:1, all the same"
  else
    row FAIL two "the worker on cuda:0,1 killed: $moved of 960 stories went on, $others differ: see $work/generate.log, two-beside.log"
  fi
}

# served_by NAME: prints how many stories a worker completed.
served_by() { grep 'finished call' "$work/$1.log" | grep 'grpc.method=Generate' | grep -c 'grpc.code=OK'; }

# two_share ADDRESS STORY: concurrent stories must reach both workers and be equal.
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

# one_lost ADDRESS: succeeds if the scheduler counts one worker as connected.
one_lost() { [[ $(fleet "$1" | grep -o '"connected":true' | wc -l) == 1 ]]; }

# two_lose SCHEDULER SURVIVOR STORY: cuda:0's worker is killed while the other streams stories.
two_lose() {
  local i lost_after good=0 bad
  for ((i = 0; i < 40; i++)); do [[ $(story "$2") == "$3" ]] || echo "story $i differs"; done >"$work/two-survivor.log" &
  local teller=$!
  sleep 0.2
  kill_server two-0
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
