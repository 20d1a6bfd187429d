# What lets the stages of gpu-check.sh that compare results run side by side: CUDA's multi-process service (MPS). gpu-check.sh sources
# this file.
# shellcheck shell=bash disable=SC2034,SC2154 # variables are shared with gpu-check.sh

# Without the service a GPU runs kernels of one process at a time, and each process waits for the time slices of all others: eight that
# launch small kernels took ten times as long as one (H200), and with it as long as one. It must not serve compute-sanitizer, whose
# runs disturb one another then.

# comparing STAGE: succeeds if a stage compares results, measures nothing, and does not need the GPU alone.
comparing() { [[ $1 =~ ^(tests|portable|conformance|sameness|transformers|families|generate)$ ]]; }

# The folder of the service, if it runs.
shared=

# service COMMAND ...: runs a command with the service's folder.
service() { CUDA_MPS_PIPE_DIRECTORY=$shared CUDA_MPS_LOG_DIRECTORY=$shared "$@" >>"$work/mps.log" 2>&1; }

# share: starts the service. Fails if it does not answer, or if the GPU is in exclusive mode or too small for several stages, which
# reserve up to 16 GB each. CUDA_VISIBLE_DEVICES is for the clients alone: they count among the GPUs that the service sees.
share() {
  [[ -z $exclusive ]] && ((gpu_mib >= 60000)) && command -v nvidia-cuda-mps-control >/dev/null || return
  shared=$(mktemp -d) || return
  service timeout 30 env -u CUDA_VISIBLE_DEVICES nvidia-cuda-mps-control -d &&
    service timeout 30 nvidia-cuda-mps-control <<<get_server_list && return
  unshare
  return 1
}

# unshare: ends the service, also if a client hangs.
unshare() {
  [[ -n $shared ]] || return 0
  service timeout 60 nvidia-cuda-mps-control <<<'quit -t 30'
  local pid=$shared/nvidia-cuda-mps-control.pid
  [[ ! -s $pid ]] || kill "$(<"$pid")" 2>/dev/null
  rm -rf "$shared"
  shared=
}

# together STAGE ...: runs stages side by side, or in turn if the service cannot be had.
together() {
  local stage run runs=()
  if ! share; then
    for stage in "$@"; do marked=$SECONDS; "$stage"; done
    return
  fi
  for stage in "$@"; do
    CUDA_MPS_PIPE_DIRECTORY=$shared CUDA_MPS_LOG_DIRECTORY=$shared apart "$stage"
    runs+=($!)
  done
  for run in "${runs[@]}"; do wait "$run" || failed=1; done
  unshare
}
