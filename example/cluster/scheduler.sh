#!/usr/bin/env bash
# Runs the scheduler; start it on the machine that DMLC_PS_ROOT_URI names.
set -euo pipefail
# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"

launch scheduler
