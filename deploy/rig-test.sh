#!/usr/bin/env bash
# rig-test.sh [SECTION,...]: starts two schedulers and four workers in containers, injects faults under load with `millrace-bench rig`,
# which prints a line for each section, and removes them. The workers compute on the CPU, or with PROFILE=sim are those of the Compose
# file's profile sim. Exits with 0 and a message if there is no Docker engine, and with 1 if a section failed.
#
#   make local-bases && BUILD_NETWORK=host make rig-test RIG=kill,freeze
set -euo pipefail
cd "$(dirname "$0")/.."
docker info >/dev/null 2>&1 || { echo 'skipped: no Docker engine answers here'; exit 0; }

export COMPOSE_PROJECT_NAME=millrace-rig VERSION=rig
export LOAD=stories SCHEDULER_PORT_0=17070 SCHEDULER_PORT_1=17170
readonly workers=4
case ${PROFILE:-} in
  '') service=worker; export CPU_WORKERS=$workers ;;
  sim) service=sim; export CPU_WORKERS=0 SIM_WORKERS=$workers ;;
  *) echo "PROFILE=$PROFILE: want nothing or sim" >&2; exit 2 ;;
esac
compose() { if docker compose version >/dev/null 2>&1; then docker compose "$@"; else docker-compose "$@"; fi; }
scratch=$(mktemp -d)

# take_down removes containers by force first, because a frozen one cannot be stopped.
take_down() {
  docker ps -aq --filter "label=com.docker.compose.project=$COMPOSE_PROJECT_NAME" | xargs -r docker rm -f >/dev/null 2>&1 || true
  compose --profile sim down >/dev/null 2>&1 || true
}
trap 'take_down; rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# quietly COMMAND ...: prints the output of the command only if it fails.
quietly() { "$@" >"$scratch/log" 2>&1 || { tail -n 20 "$scratch/log" >&2; return 1; }; }

echo "building millrace:$VERSION"
quietly compose build scheduler-0 || { echo 'without a registry, make local-bases builds the base images' >&2; exit 1; }
take_down
quietly compose ${PROFILE:+--profile "$PROFILE"} up -d --no-build
build/bin/millrace-bench rig --project "$COMPOSE_PROJECT_NAME" --service "$service" --workers "$workers" --model "$LOAD" \
  --schedulers "127.0.0.1:$SCHEDULER_PORT_0,127.0.0.1:$SCHEDULER_PORT_1" ${1:+--only "$1"} || {
  rc=$?
  compose logs --no-color >build/rig.log 2>&1 || true
  echo 'the logs of all containers are in build/rig.log' >&2
  exit "$rc"
}
