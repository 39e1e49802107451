#!/usr/bin/env bash
# Runs the workers of machine DMLC_WORKER_ID: worker.sh JOB VARIANT [ARGUMENT...]
# jobs.sh lists the jobs and variants. ARGUMENTs are passed to the training script.
# Or runs any command: worker.sh -- COMMAND...
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=common.sh
source "$here/common.sh"

read_job "$@"
launch worker "${command[@]}"
