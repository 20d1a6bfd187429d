#!/usr/bin/env bash
# Runs one gateway, one scheduler and one worker of build/bin on loopback.
#
#   local.sh run    start scheduler and worker, load the shipped model, stream a story for $PROMPT, stop both; exits 0 if all succeeded.
#                   The last line has the seed that was drawn: SEED=N generates the same story again
#   local.sh up     start all three in the background and print example commands
#   local.sh down   stop what up started
#
# Logs and pid files are under build/run. Ports: $GATEWAY_PORT (8080), $SCHEDULER_PORT (7070) and $WORKER_PORT (7071).
set -euo pipefail
cd "$(dirname "$0")/.."

readonly bin=build/bin run=build/run
readonly model=stories
readonly scheduler=127.0.0.1:${SCHEDULER_PORT:-7070} worker=127.0.0.1:${WORKER_PORT:-7071}
readonly gateway=127.0.0.1:${GATEWAY_PORT:-8080}
# A small model's stories are poor at temperature 1, because its unlikely words are drawn too often.
readonly sampling=(--temperature 0.7 --top-p 0.9)
# Seconds to wait for a server to be healthy, and for one to drain after SIGTERM.
readonly start_limit=30 stop_limit=40

die() {
  printf '%s\n' "$*" >&2
  exit 1
}

# Process ids of the programs that this shell started: only their parent can read their exit status.
declare -A child=()

# alive NAME: true if our child runs, or if the process of the pid file runs our binary.
alive() {
  local pid state
  if [[ -n ${child[$1]:-} ]]; then
    # A child that has ended is a zombie (Z) until wait.
    { read -r _ _ state _ <"/proc/${child[$1]}/stat"; } 2>/dev/null || return 1
    [[ $state != Z ]]
    return $? # in a trap, a bare return returns the status from before the trap
  fi
  pid=$(cat "$run/$1.pid" 2>/dev/null) || return 1
  [[ $(readlink "/proc/$pid/exe" 2>/dev/null) == "$PWD/$bin/$1"* ]]
}

refuse_taken() {
  local addr=$1
  if (exec 3<>"/dev/tcp/${addr%:*}/${addr#*:}") 2>/dev/null; then
    die "$addr is taken by another process: stop it, or choose other ports with GATEWAY_PORT=... SCHEDULER_PORT=... WORKER_PORT=..."
  fi
}

# start NAME ARGS...: starts the program in a new session, so that Ctrl-C reaches only this script, which stops all in order.
start() {
  local name=$1
  shift
  setsid "$bin/$name" "$@" >"$run/$name.log" 2>&1 </dev/null &
  child[$name]=$!
  echo $! >"$run/$name.pid"
}

# wait_healthy NAME ADDRESS: the gateway has a health check of its own, because it serves HTTP.
wait_healthy() {
  local name=$1 addr=$2 deadline=$((SECONDS + start_limit)) probe=millrace-scheduler
  [[ $name != millrace-gateway ]] || probe=millrace-gateway
  until "$bin/$probe" health --target "$addr" >/dev/null 2>&1; do
    alive "$name" || { tail -n 20 "$run/$name.log" >&2; die "$name ended before it was healthy; its log is $run/$name.log"; }
    ((SECONDS < deadline)) || { tail -n 20 "$run/$name.log" >&2; die "$name is not healthy after $start_limit s; its log is $run/$name.log"; }
    sleep 0.1
  done
}

refuse_running() {
  if alive millrace-worker || alive millrace-scheduler || alive millrace-gateway; then
    die "already running (see $run): stop it with make down"
  fi
  refuse_taken "$scheduler"
  refuse_taken "$worker"
}

start_both() {
  mkdir -p "$run"
  start millrace-worker --listen "$worker" --device cpu --models models
  wait_healthy millrace-worker "$worker"
  # The scheduler second, so that its first dial finds the worker.
  start millrace-scheduler --listen "$scheduler" --workers "$worker"
  wait_healthy millrace-scheduler "$scheduler"
}

# stop NAME: sends SIGTERM and waits; a process that does not drain in time is killed and counts as failed.
stop() {
  local name=$1 pid deadline=$((SECONDS + stop_limit)) rc=0
  if alive "$name"; then
    pid=$(cat "$run/$name.pid")
    kill -TERM "$pid"
    while alive "$name"; do
      if ((SECONDS >= deadline)); then
        kill -KILL "$pid"
        echo "$name did not stop within $stop_limit s and was killed; its log is $run/$name.log" >&2
        rc=1
        break
      fi
      sleep 0.05
    done
  fi
  if [[ -n ${child[$name]:-} ]]; then
    wait "${child[$name]}" || { rc=$?; echo "$name exited with status $rc; its log is $run/$name.log" >&2; }
  fi
  rm -f "$run/$name.pid"
  return "$rc"
}

start_gateway() {
  start millrace-gateway --listen "$gateway" --target "$scheduler"
  wait_healthy millrace-gateway "$gateway"
}

# Callers first, so that none logs a lost server.
stop_all() {
  local rc=0
  stop millrace-gateway || rc=1
  stop millrace-scheduler || rc=1
  stop millrace-worker || rc=1
  return "$rc"
}

case ${1:-} in
run)
  refuse_running
  trap 'trap - EXIT; stop_all || exit 1' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  start_both
  "$bin/millrace" load "$model" --target "$scheduler"
  "$bin/millrace" generate --echo-prompt "${sampling[@]}" ${SEED:+--seed "$SEED"} -m "$model" --target "$scheduler" \
    -- "${PROMPT:-Once upon a time}"
  trap - EXIT
  stop_all
  ;;
up)
  refuse_running
  refuse_taken "$gateway"
  trap 'stop_all' EXIT
  start_both
  start_gateway
  "$bin/millrace" load "$model" --target "$scheduler"
  trap - EXIT
  target=
  [[ $scheduler == *:7070 ]] || target="--target $scheduler"
  grpcurl=grpcurl
  command -v grpcurl >/dev/null || grpcurl=build/tools/grpcurl
  cat <<END

The scheduler listens on $scheduler, the worker on $worker, the HTTP gateway on $gateway; logs are in $run, make down stops all. Next:

  $bin/millrace generate${target:+ $target} ${sampling[*]} "Tom had a big red"
  $bin/millrace chat${target:+ $target} ${sampling[*]}   and then: Tell me a story about a dog and a red ball
  $bin/millrace workers${target:+ $target}
  curl -N http://$gateway/v1/completions -d '{"model":"$model","prompt":"Tom had a big red","max_tokens":60,"temperature":0.7,"top_p":0.9,"stream":true}'
  $grpcurl -plaintext localhost:${scheduler#*:} list
  $grpcurl -plaintext -d '{"model":"$model","prompt":"Tom had a big red","sampling":{"temperature":0.7,"topP":0.9},"stopping":{"maxTokens":40}}' localhost:${scheduler#*:} millrace.v1.InferenceService/Generate
END
  [[ $grpcurl == grpcurl || -x $grpcurl ]] || printf '\nmake grpcurl installs grpcurl into build/tools.\n'
  ;;
down)
  if ! alive millrace-scheduler && ! alive millrace-worker && ! alive millrace-gateway; then
    rm -f "$run"/*.pid
    echo "nothing is running"
    exit 0
  fi
  stop_all
  echo "stopped"
  ;;
*)
  die "usage: $0 run|up|down"
  ;;
esac
