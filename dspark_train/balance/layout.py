"""Which splits are legal: bounds, nodes, and the store's room, in one table made once. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from dspark_train.balance.seen import Split
from dspark_train.plan.capacity import plan_capacity, store_problem
from dspark_train.topology.resolve import Resolved
from dspark_train.topology.rules_nodes import num_engine_places, num_gpus_anywhere, num_training_gpus


@dataclass(frozen=True, slots=True)
class Layout:
    """The legal splits of a run.

    A split is legal if it has at least ``min_engines``, ``min_ranks`` to ``max_ranks`` ranks, and no more engines than
    ``most_engines`` says for so many ranks: engines take no room that a rank has, and more of them need more of the
    store, which ranks give. So whatever is legal stays legal with an engine less.
    """

    min_engines: int
    min_ranks: int
    most_engines: tuple[int, ...]
    """For min_ranks, min_ranks + 1, ...: how many engines may be beside them; below min_engines: none are legal."""
    step_packs: int

    @property
    def max_ranks(self) -> int:
        """The upper bound of the ranks, however few engines there are."""
        return self.min_ranks + len(self.most_engines) - 1

    @property
    def ranks(self) -> range:
        """The bounds of the ranks."""
        return range(self.min_ranks, self.max_ranks + 1)

    def most_beside(self, num_ranks: int) -> int:
        """The most engines beside so many ranks; -1 beyond the bounds."""
        place = num_ranks - self.min_ranks
        return self.most_engines[place] if 0 <= place < len(self.most_engines) else -1

    def is_legal(self, split: Split) -> bool:
        """Whether the run may have these sizes."""
        return self.min_engines <= split.num_engines <= self.most_beside(split.num_ranks)

    def splits(self) -> Iterator[Split]:
        """Every legal split. There may be very many: `model.best` looks at few of them."""
        for num_ranks in self.ranks:
            for num_engines in range(self.min_engines, self.most_beside(num_ranks) + 1):
                yield Split(num_engines, num_ranks)

    @classmethod
    def of(cls, resolved: Resolved) -> Layout:
        """From the bounds, the GPUs of the nodes and the bytes of the store.

        An engine takes all its GPUs, over as many nodes of one set as it spans; a rank takes one. Where both kinds
        share nodes, an engine more is its GPUs' worth of ranks less. Nodes without GPUs hold what the bounds allow.
        """
        topology = resolved.topology
        count, ranks = topology.engines.count, topology.trainers.ranks
        places, training_gpus = count.max, ranks.max
        if num_gpus_anywhere(topology):
            places, training_gpus = min(count.max, num_engine_places(topology)), num_training_gpus(topology)
        most = tuple(
            _most_engines(resolved, places, training_gpus, num_ranks)
            for num_ranks in range(ranks.min, min(ranks.max, training_gpus) + 1)
        )
        return cls(count.min, ranks.min, most, topology.data.step_packs)


def _most_engines(resolved: Resolved, places: int, training_gpus: int, num_ranks: int) -> int:
    topology = resolved.topology
    most = places
    if topology.nodes.shared is not None and num_gpus_anywhere(topology):
        most = min(most, (training_gpus - num_ranks) // topology.engines.tensor_parallel)

    def overflows(num_engines: int) -> bool:
        capacity = plan_capacity(resolved, num_engines, num_ranks)
        return store_problem(resolved, capacity, num_engines, num_ranks) is not None

    return bisect_right(range(1, most + 1), False, key=overflows)
