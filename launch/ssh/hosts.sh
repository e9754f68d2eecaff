# shellcheck shell=bash
# Sourced by up.sh and down.sh: the hosts file, and how a command gets to a host.
#
# A line a host, the head first: what ssh calls it (host, user@host, ssh://user@host:port), then variables of its own:
#   gpu-0
#   gpu-1   DSPARK_SUBNET=10.1.
# Every DSPARK_ variable of the caller goes along as well, so all hosts have the checkout at the same DSPARK_HOME.

hosts_file="${1:?the hosts file}"
: "${DSPARK_HOME:=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}"
: "${DSPARK_TMP:=/tmp/dspark-$(id -un)}"
: "${DSPARK_SSH:=ssh -o BatchMode=yes -o ConnectTimeout=10}"
mapfile -t hosts < <(sed -e 's/#.*//' -e 's/[[:space:]]\+/ /g' -e 's/ $//' -e '/^$/d' "$hosts_file")
((${#hosts[@]})) || { echo "error: $hosts_file names no host" >&2; exit 1; }
head_name="${hosts[0]%% *}"
head_name="${head_name#ssh://}" head_name="${head_name#*@}"
: "${DSPARK_HEAD:=${head_name%%:*}:6379}"

variables_of() { # HOST LINE: shell assignments, the host's own last
  local name line own
  read -ra line <<<"$1"
  for name in $(compgen -v DSPARK_); do
    [[ "$name" == DSPARK_SSH ]] || printf 'export %s=%q; ' "$name" "${!name}"
  done
  printf 'export DSPARK_LINE=%q DSPARK_HEAD_LINE=%q; ' "$1" "${hosts[0]}"
  for own in "${line[@]:1}"; do printf 'export %s=%q; ' "${own%%=*}" "${own#*=}"; done
}

on() { # HOST LINE, SCRIPT: run it there in bash
  local script
  script="$(variables_of "$1")set -euo pipefail; cd \"\$DSPARK_HOME\"; : \"\${DSPARK_NODE:=node}\"
    export DSPARK_TOKEN_FILE=\"\$DSPARK_TMP/\$DSPARK_NODE.token\"; $2"
  $DSPARK_SSH "${1%% *}" "bash -c $(printf '%q' "$script")"
}
