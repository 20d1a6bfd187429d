#!/usr/bin/env bash
# Builds the two base images of deploy/Dockerfile without a container registry: Debian by debootstrap from its package archive, and Go
# from this machine's toolchain. Run as root, with Docker and debootstrap installed.
#
#   deploy/local-bases.sh && make image
set -euo pipefail

readonly suite=bookworm
readonly base=${BASE_IMAGE:-debian:bookworm-slim} go_image=${GO_IMAGE:-golang:1.26-bookworm}

for tool in docker debootstrap go; do
  command -v "$tool" >/dev/null || { echo "$tool is missing: install it first (apt-get install debootstrap docker.io)" >&2; exit 1; }
done
[[ $EUID == 0 ]] || { echo "debootstrap needs root" >&2; exit 1; }

scratch=$(mktemp -d)
trap 'rm -rf --one-file-system "$scratch"' EXIT

# tree DIR PACKAGES: a minimal Debian without package lists and manuals.
tree() {
  debootstrap --variant=minbase --include="$2" "$suite" "$1" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"} >"$scratch/debootstrap.log" 2>&1 ||
    { tail -n 20 "$scratch/debootstrap.log" >&2; exit 1; }
  rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/archives/*.deb "$1"/usr/share/{doc,man,locale}/*
}

echo "building $base"
tree "$scratch/base" ca-certificates,libstdc++6
tar -C "$scratch/base" -c . | docker import --change 'CMD ["bash"]' - "$base"

echo "building $go_image"
tree "$scratch/go" ca-certificates,g++,make,git
mkdir -p "$scratch/go/usr/local"
cp -a "$(go env GOROOT)" "$scratch/go/usr/local/go"
# The certificates of this machine, so that the build can use the same module mirror.
cp -L /etc/ssl/certs/ca-certificates.crt "$scratch/go/etc/ssl/certs/ca-certificates.crt"
tar -C "$scratch/go" -c . | docker import \
  --change 'ENV PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
  --change 'ENV GOPATH=/go' --change 'CMD ["bash"]' - "$go_image"
