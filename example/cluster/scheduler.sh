#!/usr/bin/env bash
# Runs the scheduler: on the machine of DMLC_PS_ROOT_URI.
set -euo pipefail
# shellcheck source=common.sh
source "$(dirname "$0")/common.sh"

launch scheduler
