#!/usr/bin/env bash
# node.sh head|worker [ARGUMENTS OF `ray start`]: one node of the cluster, in the foreground. SIGTERM ends it, and exactly
# what came of it.
set -euo pipefail
role="${1:?head or worker}"
shift
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
(umask 077 && mkdir -p "$DSPARK_TMP")
cd "$DSPARK_HOME"
read -ra more <<<"${DSPARK_RAY_ARGS:-}"
exec "$DSPARK_PYTHON" -m dspark_train.cluster.node "$role" --address "$DSPARK_ADDRESS" --head "$DSPARK_HEAD" \
  --temp-dir "$DSPARK_TMP/$DSPARK_NODE" --pid-file "$DSPARK_TMP/$DSPARK_NODE.pid" --labels "$DSPARK_LABELS" \
  --timeout-s "${DSPARK_JOIN_TIMEOUT_S:-300}" -- "${more[@]}" "$@"
