#!/usr/bin/env bash
# Repeat the benchmarks that need nothing but this machine: benchmarks/all.sh [OUT [PAIRS]]. 40 minutes on two idle cores.
# OUT gets NAME.json and NAME.log of each part, and in parts.txt how it ended, how long it took, and the load before it.
# A part that fails or takes too long is told and does not stop the others; the exit status is 1 then.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-benchmarks/results/$(hostname)} pairs=${2:-5}
rounds=$(( (pairs + 1) / 2 ))  # of what launches whole runs: a minute and more for each
dspark=${DSPARK:-.venv/bin/dspark-train} python=${PYTHON:-.venv/bin/python}
num_failed=0

part() {  # NAME LIMIT_S COMMAND...: run it, and keep what it prints if it ends well
  local name=$1 limit_s=$2 began_s=$SECONDS load status ended
  shift 2
  rm -f "$out/$name.json" "$out/$name.json.new"  # nothing of an earlier call is taken for this one's
  read -r load _ < /proc/loadavg
  # SIGINT, so that runs that were launched are ended as well.
  timeout --signal=INT --kill-after=180 "$limit_s" "$@" > "$out/$name.json.new" 2> "$out/$name.log"
  status=$?
  case $status in
    0) ended=done; mv "$out/$name.json.new" "$out/$name.json"; find "$out/$name.json" -empty -delete ;;
    124|137) ended="took longer than $limit_s s" ;;
    *) ended="failed with $status: $(grep . "$out/$name.log" | tail -1)" ;;
  esac
  [ "$status" = 0 ] || num_failed=$(( num_failed + 1 ))
  printf '%-17s %4d s  load %5s  %s\n' "$name" $(( SECONDS - began_s )) "$load" "$ended" | tee -a "$out/parts.txt"
}

inputs() {  # DIR [--wide]: make them where they are not there
  test -f "$1/data/dataset.json" || part "inputs-$(basename "$1")" 300 "$python" benchmarks/inputs.py "$@"
}

mkdir -p "$out"
: > "$out/parts.txt"
inputs quickstart/bench
inputs quickstart/memory --wide

part ingest 600 $dspark bench ingest --pairs "$pairs" --json
part ledger 600 $dspark bench ledger --pairs "$pairs" --json
runs="--topology benchmarks/pipeline.yaml --no-save --json"
pipeline="bench pipeline $runs --pairs $rounds"
pace="engines.env.DSPARK_STAND_IN_TOKENS_PER_S"
vllm="--set engines.entry=dspark_train.engine.vllm_entry"
part pipeline-engine 900 $dspark $pipeline --steps 40 --set "$pace='2000'"  # is the bottleneck
part pipeline-trainer 900 $dspark $pipeline --steps 150 --set "$pace='100000'"
alone=$($python -c 'import json, sys; print(round(json.load(open(sys.argv[1]))["trainer_alone_tokens_per_s"]))' \
  "$out/pipeline-trainer.json" || echo 6000)
part pipeline-neither 900 $dspark $pipeline --steps 150 --set "$pace='$alone'"
part pipeline-vllm 900 $dspark $pipeline --steps 150 $vllm
part peer 1500 $dspark bench peer $runs --pairs "$pairs" --set draft.train.num_layers=1 $vllm
part memory 900 $dspark bench memory --topology benchmarks/memory.yaml --steps 150 --json
echo "$num_failed parts failed; all is in $out"
[ "$num_failed" = 0 ]
