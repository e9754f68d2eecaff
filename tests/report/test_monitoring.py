"""The dashboard and the rules name only metrics that the endpoint has."""

import json
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from dspark_train.report.metrics import Totals, exposition
from dspark_train.report.state import CheckpointState, MemberState, PoolState, RunState
from tests.report.test_metrics import PROMTOOL, a_load

MONITORING = Path(__file__).parents[2] / "monitoring"


def existing():
    """Metric -> its labels, of a run of which everything is known."""
    member = MemberState(name="engine-1.0", node="n", load=a_load())
    pool = PoolState(desired=1, service_tokens_per_s=1.0, blocked_frac=0.5, members=[member])
    figures = dict.fromkeys(("loss", "accept_len", "validation_loss", "validation_accept_len"), 1.0)
    state = RunState(
        run="a1",
        state="running",
        pools={"inference": pool, "trainers": pool},
        checkpoint=CheckpointState(step=1, age_s=1),
        **figures,
    )
    text = exposition(state, Totals(num_events=Counter({"run.phase": 1})), 1.0).decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            found.setdefault(one.name, set()).update(one.labels)
    return found


def expressions():
    dashboard = json.loads((MONITORING / "grafana.json").read_text())
    yield from (target["expr"] for panel in dashboard["panels"] for target in panel["targets"])
    yield from (note["expr"] for note in dashboard["annotations"]["list"])
    yield from (variable["query"] for variable in dashboard["templating"]["list"])
    rules = yaml.safe_load((MONITORING / "rules.yaml").read_text())
    yield from (rule["expr"] for group in rules["groups"] for rule in group["rules"])


@pytest.mark.parametrize("expression", list(expressions()))
def test_an_expression_names_only_what_is_there(expression):
    there = existing()
    for name, selector in re.findall(r"\b(dspark_\w+)(\{[^}]*\})?", expression):
        assert name in there
        asked = set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", selector)) - {"instance", "job"}
        assert asked <= there[name], f"{name} has no label {asked - there[name]}"


def test_every_metric_of_a_pool_and_of_an_engine_is_on_the_dashboard():
    shown = " ".join(expressions())
    wanted = ("dspark_pool_ready", "dspark_store_used", "dspark_engine_")
    assert [name for name in existing() if name.startswith(wanted) and name not in shown] == []


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed: Debian's package prometheus")
@pytest.mark.parametrize(("what", "file"), [("rules", "rules.yaml")])
def test_promtool_accepts_the_rules(what, file):
    done = subprocess.run([PROMTOOL, "check", what, str(MONITORING / file)], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stdout + done.stderr
