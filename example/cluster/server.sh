#!/usr/bin/env bash
# Runs a server.
set -euo pipefail
# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"

launch server
