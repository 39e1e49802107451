#!/usr/bin/env bash
# Runs a job on the machines of settings.sh: run.sh JOB VARIANT [ARGUMENT...]
# jobs.sh lists the jobs and variants. ARGUMENTs are passed to the training script.
# Or runs any command: run.sh -- COMMAND...
# When one process fails or this script is interrupted, all processes end.
set -euo pipefail
set -m # each process below leads its own process group, so that the whole group can be ended
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=common.sh
source "$here/common.sh"

GRACE=5 # seconds for a process to end before it gets the next, stronger signal

read_job "$@"
count_servers
((DMLC_NUM_WORKER <= ${#hosts[@]})) ||
  fail "CLUSTER_HOSTS must name $DMLC_NUM_WORKER machines or more, got ${#hosts[@]}"
read -ra remote_shell <<<"$CLUSTER_REMOTE_SHELL"

logs=$CLUSTER_WORK/logs/$name
mkdir -p "$logs"
mkfifo "$logs/ended" # receives a line when a process ends: its exit code, host and name
exec {ended}<>"$logs/ended"
rm "$logs/ended"
groups=()

# Prints the settings as shell assignments.
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

# Writes a process's output to its log, and prints it after its NAME.
show() {
  trap '' INT TERM HUP # so that a process's last output is shown too
  sed -u 's/\r$//' | tee "$(log "$1")" | sed -u "s/^/[$1] /"
}

to_all() {
  kill "-$1" -- "${groups[@]/#/-}" 2>/dev/null
}

stop() {
  trap '' INT TERM HUP
  for signal in INT TERM KILL; do # pssh ends its own processes on the first only
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
