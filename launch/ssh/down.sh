#!/usr/bin/env bash
# down.sh HOSTS: end the nodes that up.sh started, by their ids, the head last.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/hosts.sh"

end="\"\${DSPARK_PYTHON:-.venv/bin/python}\" -m dspark_train.cluster.node stop \"\$DSPARK_TMP/\$DSPARK_NODE.pid\"
  rm -f \"\$DSPARK_TOKEN_FILE\""
code=0 pids=()
for host in "${hosts[@]:1}"; do
  on "$host" "$end" &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || code=1; done
on "${hosts[0]}" "$end" || code=1
exit "$code"
