#!/usr/bin/env bash
# Runs the workers of machine DMLC_WORKER_ID: worker.sh JOB VARIANT [ARGUMENT...]
# ARGUMENTs are the training script's; jobs.sh has the jobs and variants.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=common.sh
source "$here/common.sh"

(($# >= 2)) || fail "usage: worker.sh JOB VARIANT [ARGUMENT...]"
# shellcheck source=jobs.sh
source "$here/jobs.sh" "$1" "$2"
launch worker "$CLUSTER_PYTHON" "$here/../$script" "${arguments[@]}" "${@:3}"
