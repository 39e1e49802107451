#!/usr/bin/env bash
# Runs the workers of machine DMLC_WORKER_ID: worker.sh JOB VARIANT [ARGUMENT...]
# ARGUMENTs are the training script's; jobs.sh has the jobs and variants.
# Or, with a command of one's own: worker.sh -- COMMAND...
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=common.sh
source "$here/common.sh"

read_job "$@"
launch worker "${command[@]}"
