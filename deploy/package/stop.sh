#!/bin/sh
# Before a removal, and not before a new version (deb: upgrade; rpm: 1).
set -e
case "${1:-remove}" in
  remove | 0) if [ -d /run/systemd/system ]; then systemctl disable --now millrace-worker.service millrace-scheduler.service || true; fi ;;
esac
