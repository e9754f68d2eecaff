"""Which real node each planned node becomes. Pure functions of the plan and the cluster's nodes.

Each planned node gets a real one of its own, so the nodes of an engine are never the same one twice. A node whose
operator gave it a role (`ROLE_LABEL`) takes nothing else. Nodes of one engine lie in one NVLink domain, where they are
labelled (`DOMAIN_LABEL`), and the others of its set in the same one, as far as there is room. The controller's node is
the cluster's head where that fits: either's death ends the run's present life, so they had better be one.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

from dspark_train.cluster.protocol import NodeInfo
from dspark_train.errors import ClusterError, NoNode
from dspark_train.plan.spec import PlannedNode

ROLE_LABEL = "dspark-role"
DOMAIN_LABEL = "ray.io/gpu-domain"


def match_nodes(planned: Sequence[PlannedNode], real: Sequence[NodeInfo]) -> dict[str, NodeInfo]:
    """Give each planned node a real one. Returns planned name -> node. Raises ClusterError saying what is missing."""
    living = [node for node in real if node.alive]
    ray_head = next((node for node in living if node.is_head), None)
    first = next((node for node in planned if node.role in ("training", "shared")), None)
    if ray_head is not None and first is not None and fits(first, ray_head):
        try:
            return fill(planned, {first.name: ray_head}, living)
        except NoNode:
            pass  # another needs that node more: only it has so many GPUs
    try:
        return fill(planned, {}, living)
    except NoNode as error:
        raise ClusterError(
            f"the plan needs {len(planned)} nodes and {error}. Add nodes, or choose a topology that fits "
            "(see `dspark-train plan`)"
        ) from error


def rebind(
    planned: Sequence[PlannedNode],
    bound: Mapping[str, NodeInfo],
    usable: Sequence[NodeInfo],
    wanted: Iterable[str],
    in_use: Iterable[str],
) -> dict[str, NodeInfo]:
    """Give the planned nodes ``wanted``, on which something is to start, real ones that are ``usable``.

    bound: what the planned nodes are now; in_use: those on which something runs, whose nodes are not taken. A node that
    came back under a new id, at its old address, is taken again; else one that is free. Where an engine cannot be made
    whole within its domain, all of it moves. Returns the whole binding; a planned node on which nothing runs, and whose
    node was taken, gets the one that was left. Raises NoNode saying what is missing.
    """
    wanted, by_id = set(wanted), {node.id: node for node in usable}
    held = {name for name in in_use if name not in wanted}
    taken = {bound[name].id for name in held if name in bound}
    free = [node for node in usable if node.id not in taken]
    own = [node for node in planned if node.name in wanted]
    kept = {
        node.name: by_id[bound[node.name].id] for node in own if node.name in bound and bound[node.name].id in by_id
    }
    kept |= _returned(own, bound, free, kept)
    try:
        return _exchanged(bound, fill(own, kept, usable, taken))
    except NoNode as error:
        lacking = error
    try:
        return _exchanged(bound, fill(own, {}, usable, taken))
    except NoNode:
        raise lacking from None


def fits(planned: PlannedNode, real: NodeInfo) -> bool:
    """Whether a real node can be this planned one."""
    role = real.labels.get(ROLE_LABEL)
    return real.num_gpus >= planned.num_gpus and role in (None, planned.role) and not real.is_leaving


def fill(
    planned: Sequence[PlannedNode],
    given: Mapping[str, NodeInfo],
    real: Sequence[NodeInfo],
    taken: Collection[str] = (),
) -> dict[str, NodeInfo]:
    """A real node for each planned one: those ``given``, else the smallest that is left. taken: ids of others' nodes.

    Raises NoNode saying what is missing.
    """
    matched, taken = dict(given), {*taken, *(node.id for node in given.values())}
    groups: dict[str, list[PlannedNode]] = defaultdict(list)
    set_of = {want.name: want.set_index for want in planned}
    for want in planned:
        groups[want.domain or want.name].append(want)
    for group in sorted(groups.values(), key=lambda group: (-group[0].num_gpus, -len(group))):
        lacking = [want for want in group if want.name not in matched]
        if not lacking:
            continue
        free = [node for node in real if node.id not in taken and fits(lacking[0], node)]
        there = {_domain(matched[want.name]) for want in group if want.name in matched}
        near = {_domain(node) for name, node in matched.items() if set_of.get(name) == group[0].set_index} - {""}
        pool = _one_domain(free, len(lacking), there, near) if len(group) > 1 else free
        if len(pool) < len(lacking):
            raise NoNode(_missing(group, lacking, real, len(free)))
        for want, node in zip(lacking, sorted(pool, key=partial(_order, near)), strict=False):
            matched[want.name] = node
            taken.add(node.id)
    return matched


def _one_domain(free: Sequence[NodeInfo], num: int, there: set[str], near: set[str]) -> list[NodeInfo]:
    """Nodes of the domain that is the smallest with room for ``num``, one in ``near`` where there is such.

    Nodes without a label are one domain.
    """
    domains: dict[str, list[NodeInfo]] = defaultdict(list)
    for node in free:
        domains[_domain(node)].append(node)
    if there:
        return domains[next(iter(there))] if len(there) == 1 else []
    large = [(domain not in near, len(nodes), domain) for domain, nodes in domains.items() if len(nodes) >= num]
    return domains[min(large)[-1]] if large else []


def _returned(
    own: Sequence[PlannedNode], bound: Mapping[str, NodeInfo], free: Sequence[NodeInfo], kept: Mapping[str, NodeInfo]
) -> dict[str, NodeInfo]:
    """Nodes that joined again at the address that a planned node had."""
    at = {node.address: node for node in free if node.id not in {one.id for one in kept.values()}}
    lost = [node for node in own if node.name not in kept and node.name in bound]
    return {node.name: at[bound[node.name].address] for node in lost if bound[node.name].address in at}


def _exchanged(bound: Mapping[str, NodeInfo], chosen: Mapping[str, NodeInfo]) -> dict[str, NodeInfo]:
    """``bound`` with the chosen nodes; who loses its node to them gets one that they leave."""
    ids = {node.id for node in chosen.values()}
    left = [bound[name] for name in chosen if name in bound and bound[name].id not in ids]
    after = {**bound, **chosen}
    for name, node in bound.items():
        if name not in chosen and node.id in ids and left:
            after[name] = left.pop()
    return after


def _domain(node: NodeInfo) -> str:
    return node.labels.get(DOMAIN_LABEL, "")


def _order(near: Collection[str], node: NodeInfo) -> tuple[bool, float, bool, bool, int, str]:
    """Best first: kept for this role, as small as can be, in a domain ``near``, not the cluster's head, by address."""
    return (
        ROLE_LABEL not in node.labels,
        node.num_gpus,
        _domain(node) not in near,
        node.is_head,
        int(ipaddress.ip_address(node.address)),
        node.id,
    )


def _missing(
    group: Sequence[PlannedNode], lacking: Sequence[PlannedNode], real: Sequence[NodeInfo], num_free: int
) -> str:
    names = ", ".join(want.name for want in lacking)
    have = ", ".join(_described(node) for node in real if node.alive) or "none"
    what = f"node with {lacking[0].num_gpus} GPUs is"
    if len(lacking) > 1 or num_free >= len(lacking):
        what = f"{len(lacking)} nodes with {group[0].num_gpus} GPUs in one domain are"
    return f"no {what} left for {names}; the cluster has: {have}"


def _described(node: NodeInfo) -> str:
    """Address, GPUs, and the labels that matter here."""
    labels = [node.labels[label] for label in (ROLE_LABEL, DOMAIN_LABEL) if label in node.labels]
    return f"{node.address} ({', '.join([f'{node.num_gpus:g} GPUs', *labels, *['being drained'] * node.is_leaving])})"
