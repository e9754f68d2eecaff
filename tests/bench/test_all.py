"""`benchmarks/all.sh`: a part that fails is told, and stops neither the others nor what they leave."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STUB = """#!/usr/bin/env bash
echo "warning: $*" >&2
case "$2 $*" in
  *ledger*) echo '{"half": '; echo 'error: no ledger' >&2; exit 3 ;;
  *) echo "{\\"what\\": \\"$2\\", \\"trainer_alone_tokens_per_s\\": 123.4}" ;;
esac
"""


@pytest.fixture
def stubs(tmp_path):
    dspark, python = tmp_path / "dspark-train", tmp_path / "python"
    dspark.write_text(STUB)
    python.write_text(f'#!/usr/bin/env bash\ncase $1 in -c) exec {sys.executable} "$@" ;; esac\n')
    for stub in (dspark, python):
        stub.chmod(0o755)
    return {**os.environ, "DSPARK": str(dspark), "PYTHON": str(python)}


def test_a_part_that_fails_is_told_and_the_others_go_on(stubs, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "ledger.json").write_text("{}")
    done = subprocess.run([ROOT / "benchmarks" / "all.sh", out, "3"], env=stubs, capture_output=True, text=True)
    assert done.returncode == 1
    assert "1 parts failed" in done.stdout
    found = {path.stem: json.loads(path.read_text()) for path in out.glob("*.json")}
    whats = {"ingest", "pipeline-engine", "pipeline-trainer", "pipeline-neither", "pipeline-vllm", "peer", "memory"}
    assert found == {name: {"what": name.partition("-")[0], "trainer_alone_tokens_per_s": 123.4} for name in whats}
    parts = (out / "parts.txt").read_text().splitlines()
    assert [line.split()[0] for line in parts if "inputs" not in line][:3] == ["ingest", "ledger", "pipeline-engine"]
    assert next(line for line in parts if line.startswith("ledger")).endswith("failed with 3: error: no ledger")
    assert "--pairs 2" in (out / "pipeline-vllm.log").read_text()
    assert "--pairs 3" in (out / "peer.log").read_text()
    assert "TOKENS_PER_S='123'" in (out / "pipeline-neither.log").read_text(), "the engine is paced as the trainer was"
    again = subprocess.run([ROOT / "benchmarks" / "all.sh", out], env=stubs, capture_output=True, text=True)
    assert len((out / "parts.txt").read_text().splitlines()) == len(parts), again.stdout
