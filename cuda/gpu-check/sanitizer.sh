# The stage sanitizer of gpu-check.sh, which sources this file.
# shellcheck shell=bash disable=SC2034,SC2154 # variables are shared with gpu-check.sh

# sanitize TOOL NAME PROGRAM ...: starts a run under compute-sanitizer, with at most JOBS runs at once: the tool occupies
# one processor, and the device little. GPUs of CUDA_VISIBLE_DEVICES are used in rotation. sanitized waits for all runs.
runs=()
sanitize() {
  local tool=$1 name=$2 gpus log=$1-${2// /-}
  shift 2
  IFS=, read -r -a gpus <<<"${CUDA_VISIBLE_DEVICES:-0}"
  while (($(jobs -rp | wc -l) >= JOBS)); do sleep 0.1; done
  CUDA_VISIBLE_DEVICES=${gpus[${#runs[@]} % ${#gpus[@]}]} try sanitizer "$tool: $name" "$log" \
    followed "$work/$log.log" --tool "$tool" --error-exitcode 1 "$@" &
  runs+=($!)
}

# followed LOG ARGUMENT ...: runs the tool once. The caller has sent the output to LOG. Fails also if the tool could not follow the whole
# run or has no summary, or no test ran.
followed() {
  local log=$1 status
  shift
  timeout -k 10 900 compute-sanitizer "$@" 2>&1
  status=$?
  ! grep -iE 'overflow of tracked|Running 0 tests' "$log" >/dev/null || status=1
  grep -qE '^=+ (ERROR|RACECHECK) SUMMARY: ' "$log" || status=1
  return "$status"
}

sanitized() {
  local run
  for run in "${runs[@]}"; do wait "$run" || failed=1; done
  runs=()
}

# The runs of the stage, the longest first: TOOL PROGRAM FILTER. The tools slow tests down, some four hundred times, so kernels are
# checked on small shapes of some types and widths, and tests that compare the bits of many launches are left out, as are latents,
# states, chains, branches and codebooks. Kernels without shared memory have nothing for racecheck. Of GEMMs by wgmma, racecheck sees
# those of the decode class up to 150 tokens whose pipelines do not wrap around: if a warp writes data for others, or overwrites it,
# behind an mbarrier at which one lane arrives for the warp, it reports a race that __syncwarp excludes (cuda/kernels/README.md); experts
# with several pairs are such GEMMs. Tests that measure how much of the device is free need it alone, so they run only in the stage alone.
sanitizer_runs() {
  local types='*/BF16:*/Q8_0:*/Q4_K:*/Q6_K:*/MXFP4:*/Q3_K' grouped='*/Q4_K_f16*:*/BF16_bf16*:*/MXFP4_f16_decode:*/NVFP4_f16_decode'
  local few='All/Gemm.KeepsANaN*:All/Gemm.JoinsGate*BF16*:All/Gemm.AddsBias*Q4_K*'
  cat <<RUNS
racecheck attention_prefill All/PrefillShapes.*/f16_dim64_heads4x2:*/f16_dim96_*:*/f16_dim256_*:*/f16_dim512_heads1x1
racecheck attention_f8 Attention.TakesF8*:All/WidenedKeys.*/f16_dim64_*
racecheck portable/experts_gemm $grouped
racecheck sampler -*BordersOfParts:*SplitBadly:*AloneAndAmongOthers
racecheck heads_gemm GemmHeadsEpilogue.*:$types:-*ManyTokens*
racecheck attention DecodeAttention.AgreesWithFloat64:Attention.AddsSinksAfterPieces*
racecheck op_matmul OpMatmul.*AroundTheEdgesOfTiles
racecheck normed_gemm GemmNorms.*:$types
racecheck gemm $few:-*_prefill
racecheck experts_route *
racecheck portable/gemm $few
racecheck qkv -*EveryEvenWidth
racecheck gemm_repack *
racecheck norm *
racecheck portable/gemm_tiles All/FewTokens.*FewTiles/Q4_K
racecheck experts_combine *
racecheck ops *
memcheck experts_gemm $grouped
memcheck attention -DecodeAttention.Merges*:*WhateverTheStepWrites:*SaturatedValues:*EveryEvenWidth
memcheck attention_prefill All/PrefillShapes.*/f16_*:*SeesAWindow*
memcheck gemm_tiles *Tiles.GiveTheSameBits/Q8_0:*Tiles.GiveTheSameBits/Q4_K:*SingleTiles.*/BF16:*ManyTokens.*/Q4_K:*FewTiles/Q4_K
memcheck heads_gemm GemmHeadsEpilogue.*:$types
memcheck experts_row *Adds*/Q4_K_f16:*Adds*/BF16_bf16:*Adds*/MXFP4_f16:*Overlap*/Q4_K_f16
memcheck sampler -*AloneAndAmongOthers
memcheck engine_runner Shapes/Sameness.OfPlain*:Shapes/Sameness.OfGraphsAndLaunches/0
memcheck qkv *
memcheck op_matmul *
memcheck gemm $few
memcheck normed_gemm *
memcheck attention_f8 Attention.*:All/WidenedKeys.*/f16_dim128_*:*/f16_dim80_*
memcheck experts_route *
memcheck gemm_repack *
memcheck engine_memory -Pool.LeavesFreeMemory*:Health.*:*ButForAMargin:*Graphs*:*AThousandTimes*
memcheck norm *
memcheck experts_combine *
memcheck ops *
memcheck block_copy *
memcheck slots *
RUNS
}

sanitizer() {
  command -v compute-sanitizer >/dev/null || { row skip sanitizer 'compute-sanitizer is not here'; return; }
  local run rows tool program filter folder options portable=yes
  build_portable || portable=
  mapfile -t rows < <(sanitizer_runs)
  for run in "${rows[@]}"; do
    read -r tool program filter <<<"$run"
    folder=$out options=()
    if [[ $program == portable/* ]]; then
      [[ -n $portable ]] || continue
      folder=$portable_build
    fi
    case $tool/$program in
      racecheck/gemm)
        # On other GPUs these are the runs of portable. A block has up to 66 mbarriers, more than the tool tracks by default.
        [[ $portable_build != "$out" ]] || continue
        options=(--num-cuda-barriers 128) ;;
      # Memory that is not freed by the end of the program is an error; a refusal that a test provokes is not.
      memcheck/engine_memory) options=(--leak-check full --report-api-errors no) ;;
    esac
    sanitize "$tool" "${program/\// }" "${options[@]}" "$folder/cuda_${program#portable/}_test" "--gtest_filter=$filter"
  done
  sanitized
}
