"""`dspark-train simulate`, as a user and as a program see it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHORT = """\
name: short <and> sweet
hours: 0.3
tick_s: 30
seeds: [0, 1]
engine: {samples_per_s: 10, start_s: 60}
rank: {samples_per_s: 5, start_s: 60, pause_s: 5}
noise_frac: 0.1
"""


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dspark_train.cli.app", "simulate", "-t", "topologies/single-node.yaml"]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)


def test_json_has_the_documented_keys_and_a_plot_is_drawn(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SHORT)
    result = simulate("-s", str(tmp_path / "s.yaml"), "--json", "--plot", str(tmp_path / "s.html"))
    assert (result.returncode, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    assert found["ideal_samples"] > 0
    assert set(found["laws"]) == {"balance", "static", "occupancy", "ratio", "oracle"}
    for law in found["laws"].values():
        assert set(law) >= {"samples", "of_ideal", "moves", "reversals"}
        assert len(law["by_seed"]) == 2
    page = (tmp_path / "s.html").read_text()
    assert page.count("<polyline") == 10
    assert "short &lt;and&gt; sweet" in page
    assert "http" not in page, "a page that needs nothing else"


def test_a_start_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SHORT + "start: {engines: 7, ranks: 7}\n")
    result = simulate("-s", str(tmp_path / "s.yaml"))
    assert result.returncode == 2
    assert "7 engines + 7 ranks is not a legal start" in result.stderr


def test_a_plot_of_another_kind_is_refused(tmp_path: Path) -> None:
    result = simulate("-s", "scenarios/bad-start.yaml", "--plot", str(tmp_path / "s.png"))
    assert result.returncode == 2
    assert "name a file that ends in .html" in result.stderr
