#!/usr/bin/env bash
# gpu-bundle.sh DIR: packs into DIR what a GPU host without Go needs: the sources of cuda/, the programs and the Go test
# binaries without symbols, the shipped model, test data and gpu-check.sh. It does not use the programs of `make build`,
# because these are built with -trimpath, so that tests find their data beside them.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly to=${1:?usage: gpu-bundle.sh DIR}
readonly go=${GO:-go}

rm -rf "$to"
mkdir -p "$to/bin"
export CGO_ENABLED=1
"$go" build -trimpath -ldflags '-s -w' -o "$to/bin/millrace-worker" ./services/gpuworker
"$go" build -trimpath -ldflags '-s -w' -o "$to/bin/millrace-bench" ./services/bench
"$go" test -c -trimpath -ldflags '-s -w' -o "$to/bin/native.test" ./gpuworker/engine/native
"$go" test -c -trimpath -ldflags '-s -w' -o "$to/bin/sametest.test" ./gpuworker/sametest
export CGO_ENABLED=0
"$go" build -trimpath -ldflags '-s -w' -o "$to/bin/millrace-scheduler" ./services/scheduler
"$go" build -trimpath -ldflags '-s -w' -o "$to/bin/millrace" ./services/millrace
cp -r cuda models testdata go.mod "$to/"
mkdir "$to/bench"
cp -r bench/floors "$to/bench/"
cp cuda/gpu-check.sh "$to/gpu-check.sh"
# Compressed programs are less than half the size; gpu-check.sh unpacks them.
tar -C "$to" -cJf "$to/bin.tar.xz" bin
rm -r "${to:?}/bin"
size=$(du -sm "$to" | cut -f1)
printf 'packed %s: %d MB\n' "$to" "$size"
((size < 80)) || { echo 'the bundle is not under 80 MB' >&2; exit 1; }
