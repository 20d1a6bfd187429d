#!/usr/bin/env bash
# Measures everything, or the parts named as arguments (engine, ops, memory, vectors, relay, load, routing, chaos), into bench/results/DATE-PROCESSOR/.
# Needs `make build`. OUT names another folder; SHAPES and TYPES choose what engine measures, TRACE the file that routing replays.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
bin=$root/build/bin
[[ -x $bin/millrace-bench ]] || { echo 'run make build first' >&2; exit 1; }

processor=$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -1)
name=$(printf '%s-%s-cores' "${processor:-$(uname -m)}" "$(nproc)" | tr -cs 'A-Za-z0-9.\n' '-')
out=${OUT:-$root/bench/results/$(date -u +%Y-%m-%d)-$name}
shapes=${SHAPES:-llama-0.1b llama-1b}
types=${TYPES:-q8_0 q4_k bf16}
mkdir -p "$out"
failed=0

# measure NAME ARGS...: as text for people and as JSON for programs.
measure() {
	local file=$1
	shift
	echo "== millrace-bench $*"
	"$bin/millrace-bench" "$@" --save "$out/$file.json" | tee "$out/$file.txt" || failed=1
}

engine() {
	for shape in $shapes; do
		for type in $types; do
			measure "engine-$shape-$type" engine --shape "$shape" --type "$type"
		done
	done
}

ops() {
	measure ops ops --device cpu
}

memory() {
	measure memory memory --device cpu --largest 256MiB
}

vectors() {
	measure vectors vectors --device cpu --floors "$root/bench/bars.txt"
}

relay() {
	measure relay relay
}

# load drives the shipped model on the CPU engine through the scheduler.
load() {
	local worker scheduler
	"$bin/millrace-worker" --listen 127.0.0.1:7171 --models "$root/models" --load stories >"$out/worker.log" 2>&1 &
	worker=$!
	"$bin/millrace-scheduler" --listen 127.0.0.1:7170 --workers 127.0.0.1:7171 >"$out/scheduler.log" 2>&1 &
	scheduler=$!
	trap 'kill '"$scheduler $worker"' 2>/dev/null || true' EXIT
	for _ in $(seq 100); do
		"$bin/millrace-bench" load --target 127.0.0.1:7170 --requests 1 --ceiling-time 0 >/dev/null 2>&1 && break
		sleep 0.1
	done
	measure load-closed load --target 127.0.0.1:7170 --concurrency 8 --duration 15s
	measure load-open load --target 127.0.0.1:7170 --rate 5 --duration 15s
	kill "$scheduler" "$worker"
	wait "$scheduler" "$worker" || failed=1
	trap - EXIT
	rm "$out/worker.log" "$out/scheduler.log"
}

# routing measures the fleet under schedulers, and holds it to its bars.
routing() {
	local trace=()
	[[ -z ${TRACE:-} ]] || trace=(--trace "$TRACE")
	measure replay replay "${trace[@]}" --floors "$root/bench/bars.txt"
}

chaos() {
	measure chaos chaos --models "$root/models"
}

parts=("$@")
[[ ${#parts[@]} -gt 0 ]] || parts=(engine ops memory relay load routing chaos)
for part in "${parts[@]}"; do
	case $part in
	engine | ops | memory | vectors | relay | load | routing | | chaos) "$part" ;;
	*) echo "no part $part: want engine, ops, memory, vectors, relay, load, routing or chaos" >&2; exit 1 ;;
	esac
done
echo "results are in $out"
exit "$failed"
