#!/usr/bin/env bash
# up.sh HOSTS [ARGUMENTS OF `dspark-train launch`]: a Ray cluster over the hosts of a file, by ssh.
#
# With arguments it launches on the head, follows the run, and takes the cluster down at the end; SIGTERM and Ctrl-C stop
# the run (DSPARK_RUN) with a checkpoint first. Without, the cluster stays until down.sh.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/hosts.sh"
shift
name="${DSPARK_RUN:-ssh-$(date +%Y%m%d-%H%M%S)}"

everywhere() { # SCRIPT: on all hosts at the same time; fails if it fails on one
  local host pid pids=() code=0
  for host in "${hosts[@]}"; do
    on "$host" "$1" </dev/null &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || code=1; done
  return "$code"
}
down() { trap - EXIT; "$(dirname "${BASH_SOURCE[0]}")/down.sh" "$hosts_file"; }

everywhere '[[ ! -e "$DSPARK_TMP/$DSPARK_NODE.pid" ]] || {
  echo "error: on $(hostname) a node of an earlier cluster is up ($DSPARK_TMP/$DSPARK_NODE.pid): down.sh first" >&2; exit 1; }'
trap down EXIT
trap 'on "${hosts[0]}" ". launch/env.sh; dspark-train stop $name --wait" || true; exit 130' INT TERM

# The cluster's token reaches each host by standard input: an argument could be read by every user there.
token="$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')"
for host in "${hosts[@]}"; do
  printf %s "$token" | on "$host" 'umask 077; mkdir -p "$DSPARK_TMP"; cat >"$DSPARK_TOKEN_FILE"'
done
# A node writes its id first of all; from then on down.sh can end it.
everywhere 'role=worker; [[ "$DSPARK_LINE" != "$DSPARK_HEAD_LINE" ]] || role=head
  log="$DSPARK_TMP/$DSPARK_NODE.log"
  setsid launch/node.sh "$role" </dev/null >"$log" 2>&1 & node=$!
  until [[ -e "$DSPARK_TMP/$DSPARK_NODE.pid" ]]; do
    kill -0 "$node" 2>/dev/null || { echo "--- $(hostname): $log" >&2; tail -n 5 "$log" >&2; exit 1; }
    sleep 0.1
  done'
nodes="$(on "${hosts[0]}" ". launch/env.sh; pid=\$(grep -o '\"pid\": [0-9]*' \$DSPARK_TMP/\$DSPARK_NODE.pid | cut -c8-)
  python -m dspark_train.cluster.node await --head \$DSPARK_HEAD --pid \$pid --num-nodes ${#hosts[@]} \
  --timeout-s ${DSPARK_JOIN_TIMEOUT_S:-300}")" || {
  for host in "${hosts[@]}"; do
    on "$host" "echo \"--- \$(hostname), \$DSPARK_NODE\"; tail -n 5 \"\$DSPARK_TMP/\$DSPARK_NODE.log\"" >&2 || true
  done
  exit 1
}
echo "Ray is up at $DSPARK_HEAD: $nodes"

if (($#)); then
  on "${hosts[0]}" ". launch/env.sh; exec dspark-train launch --address \$DSPARK_HEAD --name $name $(printf '%q ' "$@")"
else
  trap - EXIT
  token_file="$(on "${hosts[0]}" 'echo "$DSPARK_TOKEN_FILE"')"
  echo "on ${hosts[0]%% *}, in $DSPARK_HOME: export DSPARK_HEAD=$DSPARK_HEAD DSPARK_TOKEN_FILE=$token_file;" \
    ". launch/env.sh; dspark-train launch --address $DSPARK_HEAD --topology FILE"
fi
