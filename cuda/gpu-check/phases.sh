# The stage phases of gpu-check.sh, which sources this file.
# shellcheck shell=bash disable=SC2034,SC2154 # variables are shared with gpu-check.sh

# phases: all other kernels, the GEMMs by type and tokens and, if counters are permitted, whole steps kernel by kernel.
# Every figure is a line `ROW us MICROSECONDS` of $work/phases.txt, which floors of the command `phases` bound.
phases() {
  local figures=$work/phases.txt type rows prompt
  : >"$figures"
  if try phases 'all other kernels' phases-kernels "$out/cuda_bench_kernels"; then
    kernel_figures "$work/phases-kernels.log" >>"$figures"
  fi
  if try phases 'GEMMs' phases-gemm "$out/cuda_bench_gemm" --types bf16,q8_0,q4_k --models 8B \
    --tokens 1,8,64,128,256 --prefill 64,128,512,4096; then
    awk '$1 == "8B" { printf "%s/%s/%s/%s us %s\n", $1, $2, $3, $4, $5 }' "$work/phases-gemm.log" >>"$figures"
  fi
  phase_floors kernels "$figures"
  for type in bf16 q8_0 q4_k; do
    for rows in 1 8 64 128 256; do step_phases "$type/decode/$rows" --type "$type" --batch "$rows" || return; done
    for prompt in 64 128 512 4096; do step_phases "$type/prefill/$prompt" --type "$type" --prefill "$prompt" || return; done
  done
  phase_floors steps "$figures"
}

# kernel_figures FILE: converts its lines `NAME ROWS WIDTH MICROSECONDS us ...` to `NAME/ROWSxWIDTH us MICROSECONDS`.
kernel_figures() {
  awk '{
    for (at = 4; at <= NF && $at != "us"; ++at) {}
    if (at > NF) next
    name = $1
    for (i = 2; i < at - 3; ++i) name = name "-" $i
    gsub(/,/, "", name)
    printf "%s/%sx%s us %s\n", name, $(at - 3), $(at - 2), $(at - 1)
  }' "$1"
}

# step_phases ROW ARGUMENT ...: profiles one step of eight layers of an 8B model with ncu: how often each kernel ran, and
# its microseconds. Fails if counters are not permitted.
step_phases() {
  local row=$1 log=$work/phases-step-${1//\//-}.csv
  shift
  command -v ncu >/dev/null || { row skip phases 'steps kernel by kernel: ncu is not here'; return 1; }
  if ! timeout 120 ncu --profile-from-start off --graph-profiling node --clock-control none --cache-control none --csv \
    --print-units base --metrics gpu__time_duration.sum "$out/cuda_bench_step_bytes" "$@" >"$log" 2>&1; then
    if grep -q ERR_NVGPUCTRPERM "$log"; then row skip phases 'steps kernel by kernel: counters are not permitted here'
    else row FAIL phases "step $row: see $log"; fi
    return 1
  fi
  # In ncu's output the fifth column is the kernel, and the fifteenth, or the last, the nanoseconds.
  awk -F'","' -v row="step/$row" '
    $1 ~ /^"[0-9]+$/ {
      kernel = $5
      sub(/\(.*/, "", kernel); sub(/^void /, "", kernel); gsub(/mr::cuda::|<?unnamed>::|\(int\)| /, "", kernel)
      ns = $NF
      gsub(/[",]/, "", ns)
      if (!(kernel in count)) order[++kernels] = kernel
      ++count[kernel]; sum[kernel] += ns / 1000; all += ns / 1000
    }
    END {
      for (i = 1; i <= kernels; ++i) printf "%s/%s/%d us %.2f\n", row, order[i], count[order[i]], sum[order[i]]
      printf "%s us %.2f\n", row, all
    }' "$log" >>"$work/phases.txt"
  row ok phases "step $row: $(tail -n 1 "$work/phases.txt" | cut -d' ' -f3) us in kernels"
}

# phase_floors steps|kernels FILE: compares the figures of steps, or all others, with the floors of this GPU.
phase_floors() {
  local rows='^step/'
  [[ $1 == steps ]] || rows="!$rows"
  hold phases "$1" "$2" "$rows"
}

# hold STAGE WHAT FILE ROWS: compares a file of lines `ROW METRIC FIGURE` with the floors of this GPU whose command is
# the stage and whose rows match a pattern, or do not match it if it begins with !. A missing figure fails.
hold() {
  local floors missed
  floors=$(floors_file)
  [[ -n $floors ]] || { row skip "$1" "no floors for $gpu_name in bench/floors"; return; }
  missed=$(awk -v stage="$1" -v rows="$4" '
    BEGIN { others = sub(/^!/, "", rows) }
    NR == FNR { figure[$1 " " $2] = $3; next }
    $1 == stage && ($2 ~ rows) != others {
      key = $2 " " $3
      if (!(key in figure)) print key ": not measured, floor " $4 " " $5
      else if ($4 == "<=" ? figure[key] + 0 > $5 + 0 : figure[key] + 0 < $5 + 0) print key ": " figure[key] ", floor " $4 " " $5
    }' "$3" "$floors")
  if [[ -z $missed ]]; then row ok "$1" "the floors of $2 in $floors hold"
  else while read -r line; do row FAIL "$1" "$line"; done <<<"$missed"; fi
}
