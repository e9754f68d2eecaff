# shellcheck shell=bash
# Sourced on every node by everything in launch/, so that all nodes have the same environment. Ray's workers, and with
# them engines and ranks, inherit it. What is set beforehand is kept; docs/launchers.md lists the variables.

: "${DSPARK_HOME:=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)}"
: "${DSPARK_PYTHON:=$DSPARK_HOME/.venv/bin/python}"
: "${DSPARK_HEAD:?is the head as host:port, the same on every node}"
: "${DSPARK_TMP:=/tmp/dspark-$(id -un)}"
: "${DSPARK_NODE:=node}" # tells nodes of one machine apart
: "${DSPARK_RUNS:=$DSPARK_HOME/runs}"
export DSPARK_HOME DSPARK_PYTHON DSPARK_HEAD DSPARK_TMP DSPARK_NODE DSPARK_RUNS
PATH="$(dirname "$DSPARK_PYTHON"):$PATH"
export PATH

# Ray's sockets lie below this directory, and the path of a socket may have 107 characters.
if ((${#DSPARK_TMP} + ${#DSPARK_NODE} > 38)); then
  echo "error: $DSPARK_TMP/$DSPARK_NODE is too long for Ray's sockets: set DSPARK_TMP to 30 characters or fewer" >&2
  return 1
fi

# The address by which the other nodes reach this one: given, or the one of a subnet, or the one that the head is reached
# from. Nodes that choose different networks hang when they first meet, without a word.
if [[ -z "${DSPARK_ADDRESS:-}" && -n "${DSPARK_SUBNET:-}" ]]; then
  DSPARK_ADDRESS="$(ip -o -4 addr show | awk '{ sub("/.*", "", $4); print $4 }' |
    while read -r own; do [[ "$own" != "$DSPARK_SUBNET"* ]] || { echo "$own"; break; }; done)"
elif [[ -z "${DSPARK_ADDRESS:-}" ]]; then
  route_host="$(getent ahostsv4 "${DSPARK_HEAD%:*}" | awk 'NR == 1 { print $1 }')" || true
  DSPARK_ADDRESS="$(ip -o -4 route get "${route_host:-none}" 2>/dev/null | grep -o 'src [0-9.]*' | cut -d' ' -f2)" || true
fi
case "$DSPARK_ADDRESS" in
  "")
    echo "error: $(hostname) has no address in '${DSPARK_SUBNET:-}', nor a way to $DSPARK_HEAD: set DSPARK_SUBNET" >&2
    return 1 ;;
  127.0.0.1)
    echo "error: Ray takes the machine's outer address for 127.0.0.1: use 127.0.0.2 and up for nodes of one machine" >&2
    return 1 ;;
  127.*) : "${DSPARK_INTERFACE:=lo}" ;;
  *) : "${DSPARK_INTERFACE:=$(ip -o -4 addr show to "$DSPARK_ADDRESS/32" | awk 'NR == 1 { print $2 }')}" ;;
esac
: "${DSPARK_INTERFACE:?no interface of $(hostname) has the address $DSPARK_ADDRESS}"
export DSPARK_ADDRESS DSPARK_INTERFACE
export GLOO_SOCKET_IFNAME="$DSPARK_INTERFACE" NCCL_SOCKET_IFNAME="$DSPARK_INTERFACE"

# Nodes whose GPUs are one NVLink domain get the same label; engines over several nodes are kept within one.
: "${DSPARK_LABELS:=}"
if [[ "$DSPARK_LABELS" != *ray.io/gpu-domain=* ]]; then
  domain="$(nvidia-smi -q 2>/dev/null | awk -F' *: *' '
    $1 ~ /ClusterUUID/ { uuid = $2 } $1 ~ /CliqueId/ { clique = $2 }
    END { if (uuid ~ /^[0-9a-f-]+$/ && uuid ~ /[1-9a-f]/) print "ray.io/gpu-domain=" uuid "." clique }')" || true
  DSPARK_LABELS="$DSPARK_LABELS${domain:+${DSPARK_LABELS:+,}$domain}"
fi
export DSPARK_LABELS

# The hook would give every worker of a driver under `uv run` an environment of its own.
export RAY_ENABLE_UV_RUN_RUNTIME_ENV=0 RAY_USAGE_STATS_ENABLED=0
# At 95 % of memory Ray would end a worker of its own choice, such as the ledger; the kernel ends the largest.
export RAY_memory_monitor_refresh_ms=0
# As the ranks of the public recipe for GB300; without it Ray sets 1. Engines and ranks on CPU get their own.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-8}" PYTHONUNBUFFERED=1
if [[ -n "${DSPARK_TOKEN_FILE:-}" ]]; then
  export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$DSPARK_TOKEN_FILE"
fi
# An engine and its clients hold hundreds of sockets.
if [[ "$(ulimit -n)" != unlimited ]] && (($(ulimit -n) < 65536)); then
  ulimit -n 65536 2>/dev/null || ulimit -n "$(ulimit -Hn)"
fi
