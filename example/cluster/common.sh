# shellcheck shell=bash
# Sourced by the other scripts. Reads settings.sh; variables of the environment take precedence.

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
[[ ${hosts[*]} ]] || fail "CLUSTER_HOSTS must list machines, got '$CLUSTER_HOSTS'"
export CLUSTER_HOSTS="${hosts[*]}" DMLC_PS_ROOT_URI="${DMLC_PS_ROOT_URI:-${hosts[0]}}"

positive() {
  [[ ${!1} =~ ^[1-9][0-9]*$ ]] || fail "$1 must be a positive whole number, got '${!1}'"
}

whole() {
  [[ ${!1} =~ ^(0|[1-9][0-9]*)$ ]] || fail "$1 must be a whole number >= 0, got '${!1}'"
}

# Sets the number of servers from the number of workers.
count_servers() {
  positive DMLC_NUM_WORKER
  whole CLUSTER_SERVERS
  export DMLC_NUM_SERVER="${DMLC_NUM_SERVER:-$((DMLC_NUM_WORKER * CLUSTER_SERVERS))}"
  whole DMLC_NUM_SERVER
}

# Parses JOB VARIANT [ARGUMENT...] or -- COMMAND...: sets the job's name, the workers' command, and
# the number of machines.
read_job() {
  if [[ ${1-} == -- ]] && (($# >= 2)); then
    # shellcheck disable=SC2034
    name=command command=("${@:2}")
    export DMLC_NUM_WORKER="${DMLC_NUM_WORKER:-${#hosts[@]}}"
  elif (($# >= 2)); then
    # shellcheck source=jobs.sh
    source "$here/jobs.sh" "$1" "$2"
    name=$1-$2 command=("$CLUSTER_PYTHON" "$here/../$script" "${arguments[@]}" "${@:3}")
  else
    fail "usage: ${0##*/} JOB VARIANT [ARGUMENT...], or ${0##*/} -- COMMAND..."
  fi
}

# Replaces this process by bpslaunch: launch ROLE [COMMAND...]. A worker has a COMMAND.
launch() {
  count_servers
  mkdir -p "$CLUSTER_WORK"
  cd "$CLUSTER_WORK" || exit
  [[ $CLUSTER_PYTHON != */* ]] || PATH=${CLUSTER_PYTHON%/*}:$PATH # so that "python" means this one
  local find='import importlib.util, sys; sys.exit(not importlib.util.find_spec("bpslaunch"))'
  "$CLUSTER_PYTHON" -c "$find" >/dev/null ||
    fail "gluon_gc must be installed in the environment of CLUSTER_PYTHON, $CLUSTER_PYTHON"
  local restarts=(${CLUSTER_MAX_RESTARTS:+--max-restarts "$CLUSTER_MAX_RESTARTS"})
  DMLC_ROLE=$1 exec "$CLUSTER_PYTHON" -m bpslaunch "${restarts[@]}" "${@:2}"
}
