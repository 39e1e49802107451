#!/usr/bin/env bash
# Runs a job on the machines of settings.sh: run.sh JOB VARIANT [ARGUMENT...]
# ARGUMENTs are the training script's; jobs.sh has the jobs and variants. With a command of one's own:
# run.sh -- COMMAND... When one process fails, or this script is interrupted, all end.
set -euo pipefail
set -m # each process below leads a group of its own, which is ended as a whole
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=common.sh
source "$here/common.sh"

GRACE=5 # seconds that a process has to end, before it is told so more firmly

read_job "$@"
count_servers
((DMLC_NUM_WORKER <= ${#hosts[@]})) ||
  fail "CLUSTER_HOSTS must name $DMLC_NUM_WORKER machines or more, got ${#hosts[@]}"
read -ra remote_shell <<<"$CLUSTER_REMOTE_SHELL"

logs=$CLUSTER_WORK/logs/$name
mkdir -p "$logs"
mkfifo "$logs/ended" # gets a line when a process ends: its exit code, host and name
exec {ended}<>"$logs/ended"
rm "$logs/ended"
groups=()

# The settings, as assignments that a shell understands.
settings() {
  local name value families='BYTEPS|CLUSTER|DMLC|GLOO|GLUON_GC|MXNET|NCCL|NVIDIA|OMP|PS|TORCH'
  for name in $(compgen -e | grep -E "^($families)_"); do
    value=${!name}
    printf '%s=%s ' "$name" "${value@Q}"
  done
}

# Starts a process: NAME HOST COMMAND...
start() {
  local name=$1 host=$2 words=("${@:3}")
  local command="cd ${CLUSTER_REPOSITORY@Q}/example/cluster && exec env $settings ${words[*]@Q}"
  {
    code=0
    "${remote_shell[@]}" "$host" "$command" </dev/null 2>&1 | show "$name" || code=$?
    echo "$code" "$host" "$name" >&"$ended"
  } &
  groups+=($!)
  disown
}

log() {
  echo "$logs/${1// /-}.log"
}

# Keeps what a process prints in its log, and prints it with its NAME.
show() {
  trap '' INT TERM HUP # what it says when it ends counts too
  sed -u 's/\r$//' | tee "$(log "$1")" | sed -u "s/^/[$1] /"
}

to_all() {
  kill "-$1" -- "${groups[@]/#/-}" 2>/dev/null
}

stop() {
  trap '' INT TERM HUP
  for signal in INT TERM KILL; do # pssh ends what it started at the first only
    to_all "$signal" || return 0
    for ((tenth = 0; tenth < 10 * GRACE; tenth++)); do
      to_all 0 || return 0
      sleep 0.1
    done
  done
}

trap stop EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

export GLUON_GC_SECRET=${GLUON_GC_SECRET:-$(od -An -N 16 -t x1 /dev/urandom | tr -d ' \n')}
settings=$(settings)
((DMLC_NUM_SERVER == 0)) || start scheduler "${hosts[0]}" ./scheduler.sh
for ((server = 0; server < DMLC_NUM_SERVER; server++)); do
  start "server $server" "${hosts[server % DMLC_NUM_WORKER]}" ./server.sh
done
for ((worker = 0; worker < DMLC_NUM_WORKER; worker++)); do
  start "worker $worker" "${hosts[worker]}" "DMLC_WORKER_ID=$worker" ./worker.sh "$@"
done
for _ in "${groups[@]}"; do
  read -ru "$ended" code host name
  if ((code != 0)); then
    echo "run.sh: $name on $host ended with code $code: $(log "$name")" >&2
    exit "$code"
  fi
done
