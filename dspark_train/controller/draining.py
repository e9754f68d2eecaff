"""What leaving nodes means: who is on them, who takes their places and where, and what ends before that. Pure.

A member on a node that is left retires, and another, with a name of its own, is up before it goes. Where its place
needs what it holds, such as the other node of an engine over two, an engine ends first and is made anew there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dspark_train.cluster.protocol import NodeInfo
from dspark_train.controller.binding import rebind
from dspark_train.controller.joining import Bound, with_joined
from dspark_train.controller.roster import POOLS, Pool, Roster
from dspark_train.errors import NoNode, UsageError
from dspark_train.plan.growth import KINDS, Kind, engine_group, engine_of, grow, member_names, number_of
from dspark_train.plan.placement import NoRoom
from dspark_train.plan.spec import Plan
from dspark_train.topology.resolve import Resolved

FIXED = ("controller", "ledger", "master")


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the pools that can be made.

    plan: with everybody that is to run; bound: what its nodes are; retires: who does not come back; moves: engines that
    end first and start anew elsewhere.
    """

    plan: Plan
    bound: Bound
    retires: list[str]
    moves: list[str]


def find_nodes(
    texts: Iterable[str], bound: Mapping[str, NodeInfo], nodes: Sequence[NodeInfo], gone: Mapping[str, str]
) -> dict[str, str]:
    """Nodes by address, Ray id (or how it begins, 6 digits at least) or planned name -> id and address of each.

    gone: id -> address of nodes that need not be in the cluster any more. Raises UsageError, with what there is.
    """
    known = {**gone, **{node.id: node.address for node in nodes}}
    found = {}
    for text in texts:
        own = bound[text].id if text in bound else ""
        ids = [
            ident
            for ident, address in known.items()
            if text == address or ident == own or (len(text) >= 6 and ident.startswith(text))
        ]
        if len(ids) > 1:  # of one address: lives of one node
            ids = [ident for ident in ids if any(node.id == ident for node in nodes)] or ids[-1:]
        if len(ids) != 1:
            have = ", ".join(f"{node.address} ({node.id[:12]})" for node in nodes) or "none"
            raise UsageError(f"{text}: {'more than one node' if ids else 'no node'} of that name; there are: {have}")
        found[ids[0]] = known[ids[0]]
    return found


def change(
    plan: Plan,
    resolved: Resolved,
    roster: Roster,
    bound: Mapping[str, NodeInfo],
    usable: Sequence[NodeInfo],
    num_after: Mapping[Pool, int],
    drained: Mapping[str, str],
) -> Change:
    """How the pools come to ``num_after`` members, none of them on the nodes ``drained`` (id -> address).

    bound: what the planned nodes are; usable: the cluster's nodes on which something may start. Raises UsageError where
    there is no room, or where a node holds what cannot leave it; TopologyError as `grow` does.
    """
    closed = {name for name, node in bound.items() if node.id in drained}
    on_them = {engine_of(process.name) for process in plan.processes if process.node in closed}
    if fixed := [name for name in FIXED if name in on_them]:
        addresses = {bound[process.node].address for process in plan.processes if process.name in fixed}
        raise UsageError(
            f"{', '.join(addresses)} holds {', '.join(fixed)}, which cannot leave it while the run goes on: `stop` "
            "the run, and `launch --resume` it on a cluster without that node"
        )
    moves: list[str] = []
    while True:
        retired = {*roster.retired, *on_them} - set(moves)
        try:
            return _with(plan, resolved, roster, bound, usable, num_after, closed, retired, moves)
        except NoRoom as error:
            able = [name for name in _wanted(num_after, roster.retired)["engine"] if name in on_them - set(moves)]
            if not able or error.member.startswith("rank-"):
                raise
            moves.append(able[0])
            bound = _moved(able[0], plan, bound, usable, roster)


def _with(
    plan: Plan,
    resolved: Resolved,
    roster: Roster,
    bound: Mapping[str, NodeInfo],
    usable: Sequence[NodeInfo],
    num_after: Mapping[Pool, int],
    closed: Collection[str],
    retired: Collection[str],
    moves: Sequence[str],
) -> Change:
    now, after = _wanted(roster.num_desired, roster.retired), _wanted(num_after, retired)
    more = {kind: sum(name not in now[kind] for name in after[kind]) for kind in KINDS}
    joined, all_bound = with_joined(plan, resolved.topology, bound, usable, more, closed, retired)
    grown = grow(joined, resolved, after["engine"], after["rank"], closed)
    retires = [name for name in sorted(retired) if name not in roster.retired]
    return Change(grown, all_bound, retires, list(moves))


def _wanted(num: Mapping[Pool, int], retired: Collection[str]) -> dict[Kind, list[str]]:
    return {kind: member_names(kind, num[POOLS[kind]], retired) for kind in KINDS}


def _moved(engine: str, plan: Plan, bound: Mapping[str, NodeInfo], usable: Sequence[NodeInfo], roster: Roster) -> Bound:
    """What the planned nodes will be once this engine has ended and is made anew. Raises UsageError where it cannot."""
    wanted = {process.node for process in engine_group(plan, number_of(engine))}
    others = {*roster.names("engine"), *roster.names("rank"), *FIXED} - {engine}
    held = {process.node for process in plan.processes if engine_of(process.name) in others}
    try:
        return rebind(plan.nodes, bound, usable, wanted, held - wanted)
    except NoNode as error:
        raise UsageError(
            f"{engine} cannot leave its nodes: {error}. Add a node, or let it go: --inference -1"
        ) from error
