# The stage invariance of gpu-check.sh, which sources this file: the cost of sums that do not depend on the batch.
# shellcheck shell=bash disable=SC2154 # variables are shared with gpu-check.sh

# rate CLASS BATCH LOG: prints tokens a second of a class at a batch, from the output of millrace-bench engine.
rate() { awk -v kind="$1" -v batch="$2" '$1 == kind && $2 == batch { print $3 }' "$3"; }

# caught FREE ARCHITECTURES: the scenarios of the stage sameness, which compare the bits of every answer with its request
# alone, must detect the build whose sums depend on the batch. This proves that they can detect such a build. Comparing
# tokens would not do, because random weights may give the same tokens from different sums. Without wgmma there is only
# one order of sums, and nothing to detect.
caught() {
  local log=$work/invariance-caught.log
  if [[ $gpu_capability != 9.0 || $2 != *90a* ]]; then
    row skip invariance 'without wgmma no build picks its sums by the batch: there is nothing to catch'
  elif MILLRACE_TEST_CUDA_ENGINE=$1 "$bin/sametest.test" -test.run '^TestTheCUDAEngineAndTheLoopKeepTheirBits$/^f16$' \
    -test.timeout 9m30s -test.v >"$log" 2>&1; then
    row FAIL invariance "no scenario catches the build that is free: see $log"
  elif grep -q 'run it again with .*: alone .*, here ' "$log"; then
    row ok invariance "the build that is free is caught by $(sed -n 's/.*\(seed [0-9]*\) (.*: alone .*, here .*/\1/p' "$log" | head -n 1)"
  else
    row FAIL invariance "the build that is free fails otherwise than by its bits: see $log"
  fi
}

# Compares the shipped library with one whose GEMMs and decode attention use the kernels and splits that are fastest for
# the batch (free), run alternately: shipped, free, free, shipped. The better of its two runs counts for each. The free
# build may give other tokens in a batch than alone.
invariance() {
  local free=$out/free architectures=${ARCHITECTURES:-$(image "${gpu_capability//./}")}
  local each prompt batches tokens file kind batch log number a b
  if ! cmake --build "$out" --target millrace_free >"$work/invariance-build.log" 2>&1; then
    row FAIL invariance "build: see $work/invariance-build.log"
    return
  fi
  row ok invariance 'a build that picks its sums by the batch'
  caught "$free" "$architectures"
  file=$models/llama-8b-bf16.gguf
  [[ -s $file ]] || "$bin/millrace-bench" synth --shape llama-8b --type bf16 -o "$file" >"$work/invariance-synth.log" 2>&1
  for each in 128:1,64,128,256:64 512:1:8 4096:1:8; do
    IFS=: read -r prompt batches tokens <<<"$each"
    for log in shipped-1:$out free-1:$free free-2:$free shipped-2:$out; do
      "$bin/millrace-bench" engine --device gpu --engine-path "${log#*:}" --model "$file" --batch "$batches" --prompt "$prompt" \
        --tokens "$tokens" --depth 2 --repeat 3 --roof-time 100ms >"$work/invariance-$prompt-${log%%:*}.log" 2>&1 ||
        { [[ $log == free* ]] && grep -q 'tokens differ' "$work/invariance-$prompt-${log%%:*}.log"; } ||
        { row FAIL invariance "prompts of $prompt, ${log%%:*}: see $work/invariance-$prompt-${log%%:*}.log"; return; }
    done
    for kind in prefill decode; do
      [[ $prompt == 128 || $kind == prefill ]] || continue
      for batch in ${batches//,/ }; do
        a=$(for number in 1 2; do rate "$kind" "$batch" "$work/invariance-$prompt-shipped-$number.log"; done | sort -n | tail -n 1)
        b=$(for number in 1 2; do rate "$kind" "$batch" "$work/invariance-$prompt-free-$number.log"; done | sort -n | tail -n 1)
        row ok invariance "$kind, $batch x $prompt: $a tokens/s, and $b of the build that is free: $(
          awk -v a="$a" -v b="$b" 'BEGIN { printf "%.1f %%", 100 * (1 - a / b) }') is the cost"
      done
    done
  done
}
