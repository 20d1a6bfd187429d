#!/usr/bin/env bash
# compose-check.sh: tests the containers on this machine, which needs no GPU. It starts the default services, generates through both
# schedulers, kills a worker and recreates another; both must keep their names. Then it builds the image of GPU workers with
# build/cuda/libmillrace_cuda.so, or with a stand-in that has no GPU, and starts a worker, which must log in one line that there is no
# usable GPU, exit with 2 and stay down after its retries. On a machine with a GPU the worker must serve instead.
#
#   make local-bases && BUILD_NETWORK=host make compose-check
set -euo pipefail
cd "$(dirname "$0")/.."
export COMPOSE_PROJECT_NAME=millrace-check VERSION=${VERSION:-check} MAKEFLAGS=
readonly image=millrace:$VERSION library=build/cuda/libmillrace_cuda.so lonely=millrace-check-gpu
compose() { if docker compose version >/dev/null 2>&1; then docker compose "$@"; else docker-compose "$@"; fi; }
scratch=$(mktemp -d)
stand_in=

clean_up() {
  docker rm -f "$lonely" >/dev/null 2>&1 || true
  compose --profile gpu --profile sim down --remove-orphans >/dev/null 2>&1 || true
  [[ -z $stand_in ]] || rm -f "$library"
  rm -rf "$scratch"
}
trap clean_up EXIT

die() {
  printf '%s\n' "$*" >&2
  compose logs --tail=20 >&2 || true
  exit 1
}

# within SECONDS COMMAND ...: repeats the command until it succeeds.
within() {
  local until=$((SECONDS + $1))
  shift
  until "$@"; do
    ((SECONDS < until)) || return 1
    sleep 0.5
  done
}

client() { compose exec -T scheduler-0 millrace "$@"; }
other_client() { compose exec -T scheduler-1 millrace "$@"; }
# container NAME: the id of the container of service NAME, or of container N of the service worker for worker-N.
container() {
  local service=$1 number=1
  [[ $1 != worker-* ]] || { service=worker number=${1#worker-}; }
  docker ps -aq --no-trunc --filter "label=com.docker.compose.project=$COMPOSE_PROJECT_NAME" \
    --filter "label=com.docker.compose.service=$service" --filter "label=com.docker.compose.container-number=$number"
}
of() { docker inspect --format "$2" "$1"; }
healthy() { [[ $(of "$(container "$1")" '{{.State.Health.Status}}') == healthy ]]; }
# The ids of the workers that the scheduler is connected to, on one line.
workers() {
  client workers --once --json | tr -d ' ' | grep -o '"connected":true,"report":{"workerId":"[^"]*"' |
    sed 's/.*:"\(.*\)"/\1/' | sort | xargs
}
both() { [[ $(workers) == 'worker-1 worker-2' ]]; }
story() { "${1:-client}" generate -m stories 'Once upon a time' --max-tokens 32 --seed 1 2>/dev/null; }

make compose-up
for service in scheduler-0 scheduler-1 gateway worker-1 worker-2; do
  within 60 healthy "$service" || die "$service is not healthy: $(of "$(container "$service")" '{{json .State.Health}}')"
done
within 30 both || die "the workers are $(workers), want worker-1 and worker-2"
client load stories --replicas 2 >"$scratch/load.log" 2>&1 || die "the model is not loaded: $(tail -n 3 "$scratch/load.log")"
first=$(story)
[[ ${#first} -gt 20 ]] || die "no story: $first"
[[ $(story other_client) == "$first" ]] || die "the schedulers tell different stories"
echo "five containers are healthy, and generate: ${first:0:60}..."
answer=$(curl -fsS "http://$(docker port "$(container gateway)" 8080)/v1/completions" \
  -d '{"model":"stories","prompt":"Once upon a time","max_tokens":32,"seed":1}') || die 'the gateway does not answer'
[[ $answer == *'"object":"text_completion"'* ]] || die "the gateway answers $answer"
echo 'the gateway answers over HTTP'

# One of the two has generated the story.
endpoint() {
  local worker
  for worker in worker-1 worker-2; do curl -fsS "http://$(docker port "$(container "$worker")" 9071)/$1" || return 1; done
}
endpoint readyz >/dev/null || die 'a worker does not report that it is ready'
endpoint metrics >"$scratch/metrics" || die 'a worker serves no metrics'
grep -q '^millrace_generated_tokens_total{model="stories"} [1-9]' "$scratch/metrics" ||
  die "no worker has counted the story: $(grep '^millrace_generated' "$scratch/metrics")"
echo "both serve $(grep -c '^# TYPE millrace_' "$scratch/metrics" | awk '{print $1 / 2}') metrics"

killed=$(container worker-1)
kill -9 "$(of "$killed" '{{.State.Pid}}')"
came_back() { [[ $(of "$killed" '{{.RestartCount}}') == 1 ]]; }
within 60 came_back || die 'worker-1 was not started again after it was killed'
within 60 both || die "after a kill the workers are $(workers)"
echo 'worker-1 was killed and restarted under its name'

old=$(container worker-2)
docker rm -f "$old" >/dev/null
compose up -d worker >/dev/null 2>&1
[[ $(container worker-2) != "$old" ]] || die 'worker-2 was not recreated'
within 60 both || die "after worker-2 was recreated the workers are $(workers)"
client load stories --replicas 2 >"$scratch/load.log" 2>&1 || die "the model is not loaded: $(tail -n 3 "$scratch/load.log")"
[[ $(story) == "$first" ]] || die 'the story is another one than before'
echo 'worker-2 was recreated and kept its name'
make compose-down

if [[ ! -f $library ]]; then
  stand_in=yes
  mkdir -p "$(dirname "$library")"
  digest=unknown
  [[ ! -f cuda/sources.cmake ]] || ! command -v cmake >/dev/null || digest=$(cmake -P cuda/sources.cmake)
  cat >"$scratch/engine.c" <<END
#include "millrace/engine.h"
static mr_error *count(int32_t *n) { *n = 0; return NULL; }
static const mr_api table = {.struct_size = sizeof(mr_api), .abi_major = MR_ABI_MAJOR, .abi_minor = MR_ABI_MINOR,
  .build = "millrace-cuda; a stand-in; sources $digest", .device_count = count};
const mr_api *mr_engine_api(uint32_t major, uint32_t *supported) { (void)supported; return major == MR_ABI_MAJOR ? &table : NULL; }
END
  gcc -std=c99 -shared -fPIC -Icuda/include -o "$library" "$scratch/engine.c"
fi
export CUDA=prebuilt CUDA_BASE_IMAGE=${CUDA_BASE_IMAGE:-${BASE_IMAGE:-debian:bookworm-slim}}
CUDA_IMAGE=$CUDA_BASE_IMAGE compose --profile gpu build gpu-0 >"$scratch/build.log" 2>&1 ||
  { tail -n 20 "$scratch/build.log" >&2; die "the image of GPU workers cannot be built"; }
gpus=()
! command -v nvidia-smi >/dev/null || gpus=(--gpus 'device=0')
docker run -d --name "$lonely" --restart on-failure:5 --read-only --tmpfs /tmp --cap-drop ALL -v "$PWD/models:/models:ro" \
  "${gpus[@]}" "$image-cuda" millrace-worker --listen 0.0.0.0:7071 --insecure --device cuda:0 --models /models >/dev/null
if ((${#gpus[@]})); then
  within 60 docker exec "$lonely" millrace health --target 127.0.0.1:7071 ||
    die "the GPU worker is not healthy: $(docker logs "$lonely" 2>&1 | tail -n 5)"
  echo 'a GPU worker serves'
  exit
fi
stays_down() { [[ $(of "$lonely" '{{.State.Status}} {{.RestartCount}}') == 'exited 5' ]]; }
within 60 stays_down || die "the GPU worker is $(of "$lonely" '{{.State.Status}}, started again {{.RestartCount}} times'), want it down after 5"
[[ $(of "$lonely" '{{.State.ExitCode}}') == 2 ]] || die "the GPU worker ended with $(of "$lonely" '{{.State.ExitCode}}'), want 2"
docker logs "$lonely" >"$scratch/lines" 2>&1
[[ $(wc -l <"$scratch/lines") == 6 && $(grep -c 'usable GPU' "$scratch/lines") == 6 ]] ||
  die "the GPU worker does not say in one line that there is no usable GPU: $(cat "$scratch/lines")"
echo "a GPU worker without a GPU ended with 2, six times, and stays down: $(tail -n 1 "$scratch/lines")"
