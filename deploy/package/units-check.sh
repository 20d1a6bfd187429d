#!/usr/bin/env bash
# Tests the package's units under a running systemd: boots a minimal Debian in systemd-nspawn, installs the .deb of the first argument,
# starts both services, streams, kills the worker, which must restart, and stops both. Run as root, with systemd-container and
# debootstrap installed.
set -euo pipefail

package=$1
work=$(mktemp -d)
memory=
cleanup() {
  [[ -z $memory ]] || umount "$memory"
  rm -rf --one-file-system "$work"
}
trap cleanup EXIT

debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,libstdc++6 bookworm "$work/root" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"} > "$work/debootstrap.log" 2>&1 ||
  { tail -n 20 "$work/debootstrap.log" >&2; exit 1; }
cp "$package" "$work/root/millrace.deb"
echo '127.0.0.1 localhost' > "$work/root/etc/hosts" # debootstrap does not write it
mkdir "$work/out"

cat > "$work/root/check.sh" << 'CHECK'
#!/bin/sh
exec > /out/log 2>&1
set -eu
trap 'systemctl --no-pager status "millrace-*" || true; journalctl --no-pager -n 50 || true' EXIT
story() {
  for _ in $(seq 60); do
    millrace generate -m stories 'Once upon a time' --max-tokens 20 --temperature 0 && return
    sleep 1
  done
  return 1
}
dpkg -i /millrace.deb
if systemctl is-enabled millrace-worker millrace-scheduler millrace-gateway; then exit 1; fi # the operator enables them
systemctl start millrace-worker millrace-scheduler millrace-gateway
systemctl is-active millrace-worker millrace-scheduler millrace-gateway
test "$(stat -c %u "/proc/$(systemctl show -P MainPID millrace-worker)")" -ge 61184 # a dynamic user of systemd
story
systemctl kill --signal=KILL millrace-worker
for _ in $(seq 60); do
  test "$(systemctl show -P NRestarts millrace-worker)" = 1 && systemctl is-active --quiet millrace-worker && break
  sleep 1
done
test "$(systemctl show -P NRestarts millrace-worker)" = 1
story
millrace-gateway health
systemctl stop millrace-gateway millrace-scheduler millrace-worker
test "$(systemctl show -P Result millrace-gateway millrace-scheduler millrace-worker | tr -d '\n')" = successsuccesssuccess
dpkg --purge millrace
if systemctl cat millrace-worker; then exit 1; fi
trap - EXIT
echo the units work
CHECK
cat > "$work/root/etc/systemd/system/check.service" << 'UNIT'
[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/sh /check.sh
ExecStopPost=/bin/systemctl --no-block poweroff
[Install]
WantedBy=multi-user.target
UNIT
ln -s ../check.service "$work/root/etc/systemd/system/multi-user.target.wants/check.service"

# systemd-nspawn needs a folder in memory there; under a host's systemd all of /run is in memory.
mkdir -p /run/systemd/nspawn
if [[ $(stat -f -c %T /run/systemd/nspawn) != tmpfs ]]; then
  mount -t tmpfs tmpfs /run/systemd/nspawn && memory=/run/systemd/nspawn
fi
timeout 600 systemd-nspawn --boot --directory="$work/root" --register=no --keep-unit --private-network --bind="$work/out:/out" --console=pipe \
  < /dev/null > "$work/boot.log" 2>&1 || { tail -n 40 "$work/boot.log" >&2; exit 1; }
cat "$work/out/log"
[[ $(tail -n 1 "$work/out/log") == 'units are well' ]]
