"""What a rank takes before it has anything: Ray's worker, what a rank imports and compiles, a client without a segment.

`BareRank` is that member. The module itself is the measured process that starts a Ray of its own for it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dspark_train.bench.children import Answer, serve
from dspark_train.bench.resident import resident
from dspark_train.bench.store_master import LOOPBACK, running_master
from dspark_train.cluster.connect import connect_run
from dspark_train.cluster.local_ray import end_local, start_local
from dspark_train.cluster.protocol import MemberSpec
from dspark_train.peers import Peers
from dspark_train.plan.run_layout import RunLayout
from dspark_train.plan.spec import Plan
from dspark_train.topology.resolve import Resolved

NAME, FACTORY = "rank-0", "dspark_train.bench.bare_rank:BareRank"
RAY_TIMEOUT_S = 60.0
START_TIMEOUT_S = 300.0


class BareRank:
    """A member of a run directory, in the place of its rank."""

    def __init__(self, run_dir: str, peers: Peers) -> None:
        self._resolved = Resolved.model_validate_json(RunLayout(Path(run_dir)).resolved.read_text(encoding="utf-8"))

    def start(self, master: str) -> dict[str, Any]:
        """Import what a rank imports, compile what it compiles, and join the store. Returns {"pid"}."""
        import torch

        import dspark_train.trainer.course  # noqa: F401 - for what it takes, with all that it needs
        from dspark_train.store.connect import connect
        from dspark_train.trainer import peaks

        peaks.prepare(getattr(torch, self._resolved.hidden_dtype))

        store = self._resolved.topology.store
        self._store = connect(
            store, owner=NAME, host=LOOPBACK, master=master, segment_bytes=0, timeout_s=START_TIMEOUT_S
        )
        return {"pid": os.getpid()}


def measure(run_dir: str) -> Answer:
    """The resident memory of a bare rank: {"rss_bytes", "file_bytes"}."""
    layout = RunLayout(Path(run_dir))
    spec = Plan.model_validate_json(layout.plan.read_text(encoding="utf-8")).process(NAME)
    member = MemberSpec(
        name=NAME,
        factory=FACTORY,
        kwargs={"run_dir": run_dir},
        env=dict(spec.env) if spec.argv[:1] == ("actor",) else {},
        log=str(layout.log(NAME)),
    )
    with running_master(layout.log("master")) as master:
        try:
            start_local(layout, timeout_s=RAY_TIMEOUT_S)
            cluster = connect_run(layout)
            cluster.create(member)
            memory = resident(cluster.call(NAME, "start", master.rpc, timeout_s=START_TIMEOUT_S)["pid"])
            cluster.close()
        finally:
            end_local(layout, timeout_s=RAY_TIMEOUT_S)
    return {"rss_bytes": memory.rss_bytes, "file_bytes": memory.file_bytes}


def main() -> None:
    """Answer until standard input ends."""
    serve({"measure": measure})


if __name__ == "__main__":
    main()
