#!/bin/sh
# Runs before a removal and stops the services, but not before an upgrade (deb: upgrade; rpm: 1).
set -e
case "${1:-remove}" in
  remove | 0) if [ -d /run/systemd/system ]; then systemctl disable --now millrace-worker.service millrace-scheduler.service millrace-gateway.service || true; fi ;;
esac
