"""`dspark-train launch`: plan, start, follow. Everything that can be refused is refused before anything starts."""

from __future__ import annotations

import json as json_module
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dspark_train.cli.runs import remember
from dspark_train.errors import ClusterError, PeerError, StartError, UsageError
from dspark_train.plan.run_layout import RunLayout

if TYPE_CHECKING:
    from dspark_train.cluster.checks import Need
    from dspark_train.cluster.protocol import Cluster
    from dspark_train.data.dataset import Dataset
    from dspark_train.plan.spec import Plan
    from dspark_train.topology.resolve import Resolved

MIB = 2**20
LOCAL_START_TIMEOUT_S = 60.0
LOCAL_END_TIMEOUT_S = 60.0
CONTROLLER_TIMEOUT_S = 60.0
CONTROLLER_RESTARTS = 20
"""How often Ray brings a controller back that died; it adopts its run each time."""


def command(
    topology: Annotated[Path, typer.Option("--topology", "-t", help="The topology file.")],
    name: Annotated[
        str | None, typer.Option(help="Name of the run; the topology's name and a number if left out.")
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a value of the file: a.b=c.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return once the run is on its way.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint of the run.")] = False,
    address: Annotated[
        str | None, typer.Option(help="Address of a Ray cluster; left out, a local one is started.")
    ] = None,
    no_doctor: Annotated[bool, typer.Option("--no-doctor", help="Do not look at the nodes first.")] = False,
) -> None:
    """Plan, start and follow a run. Ctrl-C detaches; the run goes on.

    Example: dspark-train launch --topology topologies/quickstart.yaml
    """
    from dspark_train.cluster.need_checks import need_of

    resolved, plan, dataset = prepare_launch(topology, tuple(set_ or ()))
    layout = _resumed_run(resolved, name, dataset) if resume else _new_run(resolved, name)
    remember(layout)
    _write_inputs(layout, resolved, plan, dataset)
    need = None if no_doctor else need_of(resolved, plan, layout.root.parent)
    _start(layout, plan, resume, address or os.environ.get("RAY_ADDRESS"), need)
    if detach:
        print(f"run {layout.name} is on its way: {layout.root}")
        print(f"follow it: dspark-train status --watch {layout.name}; end it: dspark-train stop {layout.name}")
        return
    _follow(layout)


def prepare_launch(path: Path, overrides: tuple[str, ...]) -> tuple[Resolved, Plan, Dataset]:
    """Check all that can be checked without starting anything. Raises TopologyError, DataError, UsageError."""
    from dspark_train.cli.plan import resolve_file
    from dspark_train.data.archive import check_archive
    from dspark_train.data.dataset import Dataset
    from dspark_train.plan.build import build_plan
    from dspark_train.plan.cautions import UNMEASURED
    from dspark_train.plan.profile import profile_path

    resolved = resolve_file(path, overrides)
    _check_start(resolved)
    plan = build_plan(resolved)
    if plan.unresolved or resolved.bytes_per_token is None:
        raise UsageError(
            f"the config of target {resolved.topology.target.model} cannot be read here, so its number of layers and "
            "hidden size are unknown: download it, or set target.shape.num_layers and target.shape.hidden_size"
        )
    dataset = Dataset.open(Path(resolved.topology.data.path))
    if resolved.mode == "offline":
        check_archive(Path(resolved.topology.data.hidden_states), resolved, dataset)
    is_measured = profile_path(path).exists()
    for warning in plan.warnings:
        if warning != UNMEASURED or not is_measured:
            print(f"warning: {warning}", file=sys.stderr)
    return resolved, plan, dataset


def _check_start(resolved: Resolved) -> None:
    """Refuse a draft to start from that does not belong to the target. Raises PairingError, DataError."""
    from dspark_train.data.draft import check_start

    if unknown := check_start(resolved):
        print(f"warning: {unknown}", file=sys.stderr)


def _new_run(resolved: Resolved, name: str | None) -> RunLayout:
    from dspark_train.cli.runs import runs_dir

    root = runs_dir().absolute()
    if name is None:
        taken = {path.name for path in root.iterdir()} if root.is_dir() else set()
        number = next(n for n in range(1, len(taken) + 2) if f"{resolved.topology.name}-{n}" not in taken)
        name = f"{resolved.topology.name}-{number}"
    layout = RunLayout(root / name)
    if layout.resolved.exists():
        raise UsageError(f"run {name} exists ({layout.root}): give --resume to go on with it, or another --name")
    layout.logs.mkdir(parents=True, exist_ok=True)
    return layout


def _resumed_run(resolved: Resolved, name: str | None, dataset: Dataset) -> RunLayout:
    from dspark_train.cli.runs import find_run, newest_run_of
    from dspark_train.controller.resume import check_resumable
    from dspark_train.report import state_file
    from dspark_train.topology.resolve import Resolved as ResolvedModel

    layout = find_run(name) if name else newest_run_of(resolved.topology.name)
    state = state_file.current(layout)
    if state is not None and not state.is_terminal:
        raise UsageError(
            f"run {layout.name} is {state.state}: `dspark-train stop{' --now' if state.state == 'lost' else ''} "
            f"{layout.name}` first, then resume"
        )
    check_resumable(ResolvedModel.model_validate_json(layout.resolved.read_text(encoding="utf-8")), resolved)
    before = json_module.loads((layout.root / "launch.json").read_text(encoding="utf-8"))["data_fingerprint"]
    if before != dataset.fingerprint:
        raise UsageError(
            f"the data set {resolved.topology.data.path} is not the one that run {layout.name} trains on "
            f"(fingerprint {dataset.fingerprint[:12]}, the run's {before[:12]}): restore it, or start a new run"
        )
    return layout


def _write_inputs(layout: RunLayout, resolved: Resolved, plan: Plan, dataset: Dataset) -> None:
    import yaml

    layout.resolved.write_text(resolved.model_dump_json(indent=1), encoding="utf-8")
    layout.plan.write_text(plan.model_dump_json(indent=1), encoding="utf-8")
    tree = resolved.topology.model_dump(mode="json", exclude_unset=True)
    layout.topology.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
    facts = {"data_fingerprint": dataset.fingerprint, "argv": sys.argv, "cwd": str(Path.cwd())}
    (layout.root / "launch.json").write_text(json_module.dumps(facts, indent=1), encoding="utf-8")
    layout.state.unlink(missing_ok=True)
    layout.roster.unlink(missing_ok=True)


def _start(layout: RunLayout, plan: Plan, resume: bool, address: str | None, need: Need | None) -> None:
    """Reach the cluster, look at it for what the run needs, and hand the run to its controller.

    On failure nothing is left running.
    """
    from dspark_train.cli.look_first import look_at_nodes, look_here
    from dspark_train.cluster.connect import connect_run
    from dspark_train.cluster.local_ray import end_local, start_local

    print(f"run {layout.name}: {layout.root}", flush=True)
    if address is None:
        if need is not None:
            look_here(need)
        print("starting a local Ray (3-6 s)", flush=True)
        start_local(layout, timeout_s=LOCAL_START_TIMEOUT_S)
    else:
        layout.cluster.write_text(json_module.dumps({"address": address, "own": False}), encoding="utf-8")
    try:
        cluster = connect_run(layout)
        if address is not None and need is not None:
            look_at_nodes(cluster, need)
        _create_controller(cluster, layout, plan, resume)
        cluster.close()
    except BaseException:  # also when the user loses patience
        end_local(layout, timeout_s=LOCAL_END_TIMEOUT_S)
        raise


def _create_controller(cluster: Cluster, layout: RunLayout, plan: Plan, resume: bool) -> None:
    from dspark_train.cluster.protocol import MemberSpec
    from dspark_train.controller.binding import match_nodes
    from dspark_train.controller.crew import FACTORIES
    from dspark_train.topology.resolve import Resolved as ResolvedModel

    if leftover := cluster.list():
        raise ClusterError(
            f"members of {layout.name} still run: {', '.join(leftover)}; `dspark-train stop --now` first"
        )
    node = match_nodes(plan.nodes, cluster.nodes())[plan.process("controller").node]
    run = ResolvedModel.model_validate_json(layout.resolved.read_text(encoding="utf-8")).topology.run
    cluster.create(
        MemberSpec(
            name="controller",
            factory=FACTORIES["controller"],
            kwargs={"run_dir": str(layout.root)},
            node_id=node.id,
            max_restarts=CONTROLLER_RESTARTS,
            log=str(layout.log("controller")),
            log_max_bytes=run.log_max_mib * MIB,
            log_keep=run.log_keep,
        )
    )
    try:
        cluster.call("controller", "launch", resume, timeout_s=CONTROLLER_TIMEOUT_S)
    except PeerError:
        cluster.kill("controller")
        raise


def _follow(layout: RunLayout) -> None:
    from dspark_train.cli.follow import follow
    from dspark_train.cluster.local_ray import wait_local_end
    from dspark_train.report.summary import summarise, summary_lines

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        state = follow(layout)
    except KeyboardInterrupt:
        print(f"\ndetached; run {layout.name} goes on")
        print(f"follow it: dspark-train status --watch {layout.name}; end it: dspark-train stop {layout.name}")
        return
    if not wait_local_end(layout, timeout_s=LOCAL_END_TIMEOUT_S):
        print("warning: the local Ray is still ending", file=sys.stderr)
    if state.state == "failed":
        raise StartError(f"run {layout.name} failed: {state.reason}")
    for line in summary_lines(state, summarise(layout), layout):
        print(line)
