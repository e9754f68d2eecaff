#!/usr/bin/env bash
# Repeat every benchmark and keep the JSON: benchmarks/all.sh [OUT [PAIRS]]. On an idle machine: about 20 minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-benchmarks/results/$(hostname)} pairs=${2:-5}
bench=".venv/bin/dspark-train bench"
runs="--topology benchmarks/pipeline.yaml --no-save --json"
mkdir -p "$out"
test -d quickstart/bench/data || .venv/bin/python benchmarks/inputs.py quickstart/bench
$bench ingest --pairs "$pairs" --json > "$out/ingest.json"
$bench ledger --pairs "$pairs" --json > "$out/ledger.json"
for pace in 2000 4000 100000; do  # the engine is the bottleneck, neither is, the trainer is
  $bench pipeline $runs --pairs 3 --set "engines.env.DSPARK_STAND_IN_TOKENS_PER_S='$pace'" > "$out/pipeline-$pace.json"
done
vllm="--set engines.entry=dspark_train.engine.vllm_entry"
$bench pipeline $runs --pairs 1 $vllm > "$out/pipeline-vllm.json"
$bench peer $runs --pairs "$pairs" $vllm > "$out/peer.json"
