# The stage served of gpu-check.sh, which sources this file: a large model through scheduler and worker, with default types.
# shellcheck shell=bash disable=SC2034,SC2154 # variables are shared with gpu-check.sh

readonly SERVED_MODEL=${SERVED_MODEL:-llama-8b:bf16}
readonly served_model=${SERVED_MODEL/:/-}

# The parts, in this order; engine is the reference of the mixes, and its file stays for later runs.
readonly SERVED=${SERVED:-engine mixes join prefix cancel overload fairness}
readonly served_mixes=(1x128/256 64x128/256 128x128/256 256x128/256 64x1024/256)

# calls_of MIX: prints a number of calls that fills whole rounds of slots, like the measurement of the engine alone. The
# calls of a round begin and end almost together, so a partial round would leave the other slots empty to its end.
calls_of() {
  case $1 in
    1x*) echo 16 ;;
    64x128/*) echo $((20 * 64)) ;;
    128x*) echo $((8 * 128)) ;;
    256x*) echo $((5 * 256)) ;;
    64x1024/*) echo $((10 * 64)) ;;
  esac
}

# measured PART LOG ARGUMENT ...: runs millrace-bench, with the floors of this GPU if it has any.
measured() {
  local part=$1 log=$2 floors options=() line
  shift 2
  floors=$(floors_file)
  if [[ -n $floors ]] && grep -qE "^$part" "$floors"; then options=(--floors "$floors"); fi
  try served "${part//$'\n'/ }" "served-$log" "$bin/millrace-bench" "$@" "${options[@]}" --save "$work/served-$log.json" || return
  while read -r line; do row ok served "$log: $line" 0; done < <(grep -E \
    '^engine |^idle |tokens/s, |inter-token |sooner with|^cached |planned later|^idle [0-9]|^afterwards|^hung|times as long| [0-9]+x[0-9]+/[0-9]+ ' \
    "$work/served-$log.log" | tr -s ' ')
}

served() {
  local file at=127.0.0.1:17071 over=127.0.0.1:17070 page=127.0.0.1:17072 part mix
  file=$(random_model "${SERVED_MODEL%:*}" "${SERVED_MODEL#*:}")
  [[ -s $file ]] || { row FAIL served "no model: see $work/synth-$served_model.log"; return; }
  # The engine alone must have the GPU to itself.
  if [[ " $SERVED " == *' engine '* ]]; then
    measured "engine $served_model/f16/mix/" engine engine --device gpu --engine-path "$out" --model "$file" --repeat 3 \
      --roof-time 200ms --mix "$(IFS=,; echo "${served_mixes[*]}")" || return
  fi
  worker served-worker "$at" --device cuda:0 --models "$models" --metrics-listen "$page"
  scheduler served-scheduler "$over" "$at"
  if within 120 "$bin/millrace" load "$served_model" --target "$over" >>"$work/served-load.log" 2>&1; then
    for part in $SERVED; do
      case $part in
        engine) ;;
        mixes)
          for mix in "${served_mixes[@]}"; do
            measured "load $served_model/$mix/alone " "load-${mix/\//-}" load --target "$over" --mix "$mix" --requests "$(calls_of "$mix")" \
              --engine "$work/served-engine.json" --metrics "http://$page/metrics" --no-histogram
          done ;;
        join)
          measured "load $served_model/64x128/256/joined-by-4096x2s " load-joined load --target "$over" --mix 64x128/256 --duration 30s \
            --join 4096x2s --metrics "http://$page/metrics" --no-histogram ;;
        prefix) measured 'prefix ' prefix prefix --target "$over" ;;
        cancel) measured 'cancel ' cancel cancel --target "$over" --worker "$at" ;;
        overload) measured 'overload ' overload overload --target "$over" --worker "$at" --worker-pid "${servers[served-worker]}" ;;
        fairness) measured 'fairness ' fairness fairness --target "$over" ;;
        *) row FAIL served "no part $part" ;;
      esac
    done
  else
    row FAIL served "$served_model is not loaded: see $work/served-worker.log and served-load.log"
  fi
  stop_servers
}
