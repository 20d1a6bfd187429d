#!/usr/bin/env bash
# Tests a release: two builds, from clones in folders of different names, have the same bytes; lintian finds nothing in the package; its
# units are well-formed and run under systemd; pip installs the wheel, which streams from the release's programs; and if a Docker engine
# answers, a clean container installs the package and gets a first token.
set -euo pipefail
cd "$(dirname "$0")/.."

top=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
say() { printf '== %s\n' "$1"; }

source=.
for name in one another-folder; do
  say "release in a clone named $name"
  git clone -q "$source" "$work/$name"
  source=$work/one  # a commit during the check has no effect
  (cd "$work/$name" && TOOLS="$top/build/tools" deploy/release.sh > /dev/null)
done
diff "$work/one/build/release/SHA256SUMS" "$work/another-folder/build/release/SHA256SUMS"
cat "$work/one/build/release/SHA256SUMS"
package=$(echo "$work"/one/build/release/*_amd64.deb)

if command -v lintian > /dev/null; then
  say 'lintian'
  lintian --fail-on error,warning --suppress-tags bad-distribution-in-changes-file "$package"
else
  say 'skipped: lintian is not installed'
fi

if command -v systemd-analyze > /dev/null; then
  say 'units'
  mkdir "$work/root"
  dpkg-deb -x "$package" "$work/root"
  for unit in worker scheduler gateway; do
    sed "s#/usr/bin/#$work/root/usr/bin/#; s#man:millrace-.*#man:man(1)#" "$work/root/usr/lib/systemd/system/millrace-$unit.service" > "$work/millrace-$unit.service"
    systemd-analyze verify "$work/millrace-$unit.service"
  done
else
  say 'skipped: systemd-analyze is not installed'
fi

if [[ $EUID == 0 ]] && command -v systemd-nspawn > /dev/null && command -v debootstrap > /dev/null; then
  say 'the package under a running systemd'
  deploy/package/units-check.sh "$package"
else
  say 'skipped: needs root, systemd-container and debootstrap'
fi

say 'tests of the tools'
(cd tools/release && GOFLAGS='' go test ./...)

# Debian's interpreter has gRPC from python3-grpcio, others have it from pip.
python=
for name in python3 /usr/bin/python3; do
  if "$name" -c 'import grpc, pip' 2> /dev/null; then python=$name && break; fi
done
if [[ -n $python ]]; then
  say 'a story through the wheel'
  tar -C "$work" -xzf "$work"/one/build/release/*-linux-amd64.tar.gz
  "$python" -m pip install -q --no-index --no-deps --target "$work/python" "$work"/one/build/release/*.whl
  release=$(echo "$work"/millrace-*-linux-amd64)
  "$release/bin/millrace-worker" --listen "unix:$work/socket" --models "$release/models" --load stories 2> "$work/worker.log" &
  worker=$!
  trap 'kill "$worker" 2> /dev/null || true; rm -rf "$work"' EXIT
  for _ in $(seq 60); do
    "$release/bin/millrace" models --target "unix:$work/socket" 2> /dev/null | grep -q ready && break
    sleep 1
  done
  PYTHONPATH=$work/python "$python" examples/python/story.py --target "unix:$work/socket" --max-tokens 20 --seed 1
  kill "$worker"
  wait "$worker"
else
  say 'skipped: no python3 with grpc and pip'
fi

base=${BASE_IMAGE:-debian:bookworm-slim}
if docker image inspect "$base" > /dev/null 2>&1; then
  say "a first token in a clean container of $base"
  docker run --rm --network none -v "$work/one/build/release:/release:ro" "$base" sh -euc '
    dpkg -i /release/*_amd64.deb
    . /etc/default/millrace-worker && millrace-worker $OPTIONS 2> /tmp/worker.log &
    . /etc/default/millrace-scheduler && millrace-scheduler $OPTIONS 2> /tmp/scheduler.log &
    . /etc/default/millrace-gateway && millrace-gateway $OPTIONS 2> /tmp/gateway.log &
    for i in $(seq 60); do millrace generate -m stories "Once upon a time" --max-tokens 20 --temperature 0 && break; sleep 1; done
    millrace-gateway health
    millrace models | grep stories
    dpkg --purge millrace
    ! test -e /usr/bin/millrace'
else
  say "skipped: no image $base; make local-bases makes one"
fi
