"""`dspark-train plan`: everything that launch would start. Starts nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pydantic import BaseModel

    from dspark_train.plan.spec import Plan
    from dspark_train.topology.resolve import Resolved
    from dspark_train.topology.schema import Topology


def command(
    topology: Annotated[Path, typer.Option("--topology", "-t", help="The topology file.")],
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a value of the file: a.b=c.")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Nodes that there are: refuse a plan for more.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Show every process that launch would start, and the arithmetic behind it. Starts nothing.

    Throughput is predicted where `bench pipeline` or `bench profile` has left rates of this topology beside it.

    Example: dspark-train plan --topology topologies/quickstart.yaml
    """
    from dspark_train.cli.measured import forecast
    from dspark_train.plan.build import build_plan
    from dspark_train.plan.redact import redacted

    resolved = resolve_file(topology, tuple(set_ or ()))
    plan = redacted(forecast(build_plan(resolved, max_nodes=nodes), resolved, topology))
    if json:
        from json import dumps

        print(dumps(as_json(plan), indent=1))
        return
    from dspark_train.cli.plan_text import show

    show(plan)


def resolve_file(path: Path, overrides: tuple[str, ...]) -> Resolved:
    """The topology of ``path`` with what its target's files say. Raises TopologyError and DataError.

    Local paths are made absolute, since the processes of a run start in directories of their own.
    """
    from dspark_train.data.target import read_target_facts
    from dspark_train.topology.load import load
    from dspark_train.topology.resolve import resolve

    topology = _absolute(load(path, overrides))
    return resolve(topology, read_target_facts(topology.target.model))


def as_json(plan: Plan) -> dict[str, Any]:
    """What `--json` prints."""
    tree = plan.model_dump(mode="json")
    for process in tree["processes"]:
        process["gpus"] = process.pop("num_gpus")
        process["cpus"] = process.pop("num_cpus")
    return tree


def _absolute(topology: Topology) -> Topology:
    target, draft, data, store = topology.target, topology.draft, topology.data, topology.store
    read = {name: draft.train[name] for name in ("from_pretrained", "draft_config") if draft.train.get(name)}
    train = {**draft.train, **{name: _here(text) for name, text in read.items() if _is_here(text)}}
    changes: dict[str, BaseModel] = {
        "draft": draft.model_copy(update={"train": train}),
        "data": data.model_copy(update={"path": _here(data.path), "hidden_states": _here(data.hidden_states)}),
        "store": store.model_copy(update={"path": _here(store.path)}),
    }
    if _is_here(target.model):
        changes["target"] = target.model_copy(update={"model": _here(target.model)})
    return topology.model_copy(update=changes)


def _here(path: str) -> str:
    """The absolute path; "" stays so."""
    return path and str(Path(path).expanduser().absolute())


def _is_here(path: str) -> bool:
    return Path(path).expanduser().exists()
