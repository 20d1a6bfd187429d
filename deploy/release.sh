#!/usr/bin/env bash
# Builds a release in build/release: for each architecture an archive, a .deb and an .rpm; one more archive with the CUDA engine if
# `make cuda` built it; a wheel for Python, the bill of materials, and SHA256SUMS of all files. The same commit gives the same bytes in
# every folder: times are the commit's, paths are trimmed, files are sorted.
set -euo pipefail
cd "$(dirname "$0")/.."

# The version of the release; make's VERSION is that of a commit between releases.
VERSION=${RELEASE:-$(sed -n 's/^## \([0-9][0-9.]*\).*/\1/p' CHANGELOG.md | head -1)}
TOOLS=${TOOLS:-build/tools}
OUT=build/release
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export LC_ALL=C TZ=UTC
umask 022
for tool in aarch64-linux-gnu-g++ protoc grpc_python_plugin; do
  command -v "$tool" > /dev/null || {
    echo "no $tool: apt install g++-aarch64-linux-gnu protobuf-compiler protobuf-compiler-grpc libprotobuf-dev" >&2
    exit 1
  }
done
rm -rf "$OUT"
mkdir -p "$OUT"

# programs ARCH FOLDER: builds the five programs. The two with the CPU engine need a C++ compiler for ARCH.
programs() {
  local arch=$1 to=$2 flags=(-trimpath -buildvcs=false)
  local ld="-s -w -X github.com/millrace/millrace/services/internal/version.Version=v$VERSION"
  mkdir -p "$to"
  if [[ $arch == arm64 ]]; then local -x CC=aarch64-linux-gnu-gcc CXX=aarch64-linux-gnu-g++; fi
  GOARCH=$arch CGO_ENABLED=0 go build "${flags[@]}" -ldflags "$ld" -o "$to/millrace-scheduler" ./services/scheduler
  GOARCH=$arch CGO_ENABLED=0 go build "${flags[@]}" -ldflags "$ld" -o "$to/millrace-gateway" ./services/gateway
  GOARCH=$arch CGO_ENABLED=0 go build "${flags[@]}" -ldflags "$ld" -o "$to/millrace" ./services/millrace
  GOARCH=$arch CGO_ENABLED=1 go build "${flags[@]}" -buildmode=pie -ldflags "$ld -extldflags -Wl,-z,relro,-z,now" -o "$to/millrace-worker" ./services/gpuworker
  GOARCH=$arch CGO_ENABLED=1 go build "${flags[@]}" -buildmode=pie -ldflags "$ld -extldflags -Wl,-z,relro,-z,now" -o "$to/millrace-bench" ./services/bench
}

# pack NAME PARENT: packs PARENT/NAME as NAME.tar.gz.
pack() {
  tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -C "$2" -cf - "$1" | gzip -9n > "$OUT/$1.tar.gz"
}

# packaged ARCH BIN FOLDER: installs the files of a package to a folder.
packaged() {
  local bin=$2 root=$3
  install -D -m 755 -t "$root/usr/bin" "$bin"/*
  install -D -m 644 -t "$root/usr/lib/systemd/system" deploy/package/*.service
  install -D -m 644 deploy/package/millrace-worker.env "$root/etc/default/millrace-worker"
  install -D -m 644 deploy/package/millrace-scheduler.env "$root/etc/default/millrace-scheduler"
  install -D -m 644 deploy/package/millrace-gateway.env "$root/etc/default/millrace-gateway"
  install -D -m 644 -t "$root/usr/share/millrace/models" models/stories.gguf
  install -D -m 644 -t "$root/usr/share/man/man1" "$work"/man/*/*.1
  gzip -9n "$root"/usr/share/man/man1/*.1
  install -D -m 644 deploy/package/copyright "$root/usr/share/doc/millrace/copyright"
  install -D -m 644 deploy/package/lintian-overrides "$root/usr/share/lintian/overrides/millrace"
  changes > "$root/usr/share/doc/millrace/changelog.Debian"
  gzip -9n "$root/usr/share/doc/millrace/changelog.Debian"
  completions "$root"
}

# changes: the changes of the newest release in Debian's format.
changes() {
  printf 'millrace (%s-1) unstable; urgency=medium\n\n' "$VERSION"
  awk '/^## /{n++} n == 1 && /^\* /{if (t) print t; t = substr($0, 3)} n == 1 && /^  /{t = t substr($0, 2)} END {print t}' CHANGELOG.md |
    while read -r change; do fold -s -w 74 <<< "$change" | sed '1s/^/  * /; 2,$s/^/    /; s/ *$//'; done
  printf '\n -- The Millrace authors <maintainers@millrace.dev>  %s\n' "$(date -u -R -d "@$SOURCE_DATE_EPOCH")"
}

# completions ROOT: installs the shell completions, written by the client of this machine's architecture.
completions() {
  local client=$work/$native/millrace root=$1
  mkdir -p "$root"/usr/share/{bash-completion/completions,zsh/vendor-completions,fish/vendor_completions.d}
  "$client" completion bash > "$root/usr/share/bash-completion/completions/millrace"
  "$client" completion zsh > "$root/usr/share/zsh/vendor-completions/_millrace"
  "$client" completion fish > "$root/usr/share/fish/vendor_completions.d/millrace.fish"
}

# manual: writes the manual pages to $work/man/PROGRAM. A test of each program renders them from the flags.
manual() {
  go test -trimpath -buildvcs=false -vet=off -count=1 -run '^TestManualPages$' ./services/scheduler ./services/millrace/internal/cli \
    ./services/gateway ./services/gpuworker ./services/bench/internal/command -args -manpages "$work/man" >&2
}

# wheel: builds the wheel of the contract's stubs with their types, and of the helpers.
wheel() {
  mkdir -p "$work/wheel"
  protoc -I proto --python_out="$work/wheel" --pyi_out="$work/wheel" --grpc_python_out="$work/wheel" \
    --plugin=protoc-gen-grpc_python="$(command -v grpc_python_plugin)" proto/millrace/v1/*.proto
  cp examples/python/millrace/*.py "$work/wheel/millrace/"
  "$TOOLS/wheel" --name millrace --version "$VERSION" --summary 'Client of Millrace, language models served over gRPC' \
    --licence Apache-2.0 --python '>=3.9' --requires 'grpcio>=1.51' --requires 'protobuf>=4.21' --readme deploy/package/python.md \
    --time "$SOURCE_DATE_EPOCH" --out "$OUT" "$work/wheel"
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
native=$(go env GOARCH)
for arch in ${ARCHITECTURES:-amd64 arm64}; do
  echo "programs for $arch" >&2
  programs "$arch" "$work/$arch"
done
[[ -d $work/$native ]] || programs "$native" "$work/$native"
manual
for arch in ${ARCHITECTURES:-amd64 arm64}; do
  name=millrace-$VERSION-linux-$arch
  mkdir -p "$work/archives/$name"/{bin,models,share}
  cp "$work/$arch"/* "$work/archives/$name/bin/"
  cp models/stories.gguf models/README.md "$work/archives/$name/models/"
  cp -r "$work/man" deploy/package/*.service "$work/archives/$name/share/"
  cp LICENSE README.md CHANGELOG.md "$work/archives/$name/"
  chmod -R u=rwX,go=rX "$work/archives/$name"
  pack "$name" "$work/archives"
  if [[ $arch == amd64 && -f build/cuda/libmillrace_cuda.so ]]; then
    cp -r "$work/archives/$name" "$work/archives/$name-cuda"
    mkdir "$work/archives/$name-cuda/lib" # the worker looks in ../lib
    cp build/cuda/libmillrace_cuda.so "$work/archives/$name-cuda/lib/"
    pack "$name-cuda" "$work/archives"
  fi
  packaged "$arch" "$work/$arch" "$work/root-$arch"
  find "$work/root-$arch" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
  for format in deb rpm; do
    ARCH=$arch VERSION=$VERSION ROOT=$work/root-$arch "$TOOLS/nfpm" package --config deploy/package/nfpm.yaml --packager "$format" --target "$OUT/" >&2
  done
done
wheel
"$TOOLS/sbom" --name millrace --version "$VERSION" --licence Apache-2.0 "$work/$native"/* > "$OUT/millrace-$VERSION.cdx.json"
(cd "$OUT" && sha256sum -- * > SHA256SUMS)
cat "$OUT/SHA256SUMS"
