#!/bin/sh
# Runs after an installation, an upgrade and a removal: systemd reloads the units. Running services continue until the operator restarts
# them, workers one at a time. No service is started by the package.
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload || true; fi
