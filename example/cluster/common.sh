# shellcheck shell=bash
# Sourced by the scripts beside it: reads the settings, over which the environment wins.

fail() {
  echo "${0##*/}: $*" >&2
  exit 2
}

environment=$(export -p)
set -a
# shellcheck source=settings.sh
source "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
set +a
eval "$environment"

read -rd '' -a hosts <<<"$CLUSTER_HOSTS" || true
[[ ${hosts[*]} ]] || fail "CLUSTER_HOSTS must name machines, got '$CLUSTER_HOSTS'"
export CLUSTER_HOSTS="${hosts[*]}" DMLC_PS_ROOT_URI="${DMLC_PS_ROOT_URI:-${hosts[0]}}"

positive() {
  [[ ${!1} =~ ^[1-9][0-9]*$ ]] || fail "$1 must be a positive whole number, got '${!1}'"
}

# Sets how many servers there are, once it is known how many workers.
count_servers() {
  positive DMLC_NUM_WORKER
  positive CLUSTER_SERVERS
  export DMLC_NUM_SERVER="${DMLC_NUM_SERVER:-$((DMLC_NUM_WORKER * CLUSTER_SERVERS))}"
  positive DMLC_NUM_SERVER
}

# Becomes this machine's part of the cluster: a ROLE, and for a worker a COMMAND.
launch() {
  count_servers
  mkdir -p "$CLUSTER_WORK"
  cd "$CLUSTER_WORK" || exit
  local restarts=(${CLUSTER_MAX_RESTARTS:+--max-restarts "$CLUSTER_MAX_RESTARTS"})
  DMLC_ROLE=$1 exec "$CLUSTER_PYTHON" -m bpslaunch "${restarts[@]}" "${@:2}"
}
