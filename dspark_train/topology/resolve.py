"""Values derived from a topology and what is known of its target, made once. Pure.

`Resolved` is what the rest of the program reads: the topology, plus the derived values. It serialises to JSON, so
members of a run get it whole.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dspark_train.errors import TopologyError
from dspark_train.topology.facts import TargetFacts, contradictions
from dspark_train.topology.rules_nodes import num_gpus_anywhere
from dspark_train.topology.schema import Topology
from dspark_train.topology.train_fields import cpu_defaults

__all__ = ["DTYPE_BYTES", "GIB", "Resolved", "TargetFacts", "resolve"]

DTYPE_BYTES = {"float32": 4, "bfloat16": 2}
GIB = 2**30
Mode = Literal["online", "disk", "offline"]
"""online: engines put samples into Mooncake. disk: into a directory. offline: they lie in one already."""


class Resolved(BaseModel):
    """A topology with its derived values."""

    model_config = ConfigDict(frozen=True)

    topology: Topology
    facts: TargetFacts
    mode: Mode = "online"
    device: Literal["cpu", "cuda"]
    hidden_dtype: Literal["float32", "bfloat16"]
    layer_ids: tuple[int, ...] | None
    """The target's hidden-state ids in the order stored, the last layer last; None while num_layers is unknown."""
    num_layers_stored: int
    bytes_per_token: int | None
    """Hidden states of one token: layers stored x hidden size x bytes of the type."""
    step_bytes: int | None
    """Hidden states of one full step: step_packs x seq_len x bytes_per_token."""
    segment_bytes: int
    num_writer_threads: int
    """Threads of an engine that put. A put in flight spins, so on CPU a second one would take all cores."""
    train: dict[str, Any] = Field(default_factory=dict)
    """Fields of speculators' TrainConfig: those of `draft.train`, and those that other keys decide."""


def resolve(topology: Topology, facts: TargetFacts) -> Resolved:
    """Derive everything that follows from the topology and the target's figures.

    Figures that the target's files leave open are taken from ``target.shape``. Raises TopologyError where the topology
    contradicts them: a layer that the target does not have, a shape that is not its own.
    """
    shape = topology.target.shape
    merged = facts.model_copy(
        update={
            "num_layers": facts.num_layers or shape.num_layers,
            "hidden_size": facts.hidden_size or shape.hidden_size,
            "vocab_size": facts.vocab_size or shape.vocab_size,
            "weight_bytes": facts.weight_bytes or (round(shape.weight_gib * GIB) if shape.weight_gib else None),
            "source": facts.source or ("topology" if shape.hidden_size else ""),
        }
    )
    problems = [topology.problem(*finding) for finding in contradictions(topology, facts, merged)]
    if problems:
        raise TopologyError(problems)
    layers = topology.target.layers
    device: Literal["cpu", "cuda"] = "cuda" if num_gpus_anywhere(topology) else "cpu"
    dtype = topology.target.dtype or ("float32" if device == "cpu" else "bfloat16")
    bytes_per_token = merged.hidden_size and (len(layers) + 1) * merged.hidden_size * DTYPE_BYTES[dtype]
    return Resolved(
        topology=topology,
        facts=merged,
        mode="offline" if topology.data.hidden_states else "disk" if topology.store.protocol == "disk" else "online",
        device=device,
        hidden_dtype=dtype,
        layer_ids=(*layers, merged.num_layers) if merged.num_layers else None,
        num_layers_stored=len(layers) + 1,
        bytes_per_token=bytes_per_token,
        step_bytes=bytes_per_token and bytes_per_token * topology.data.seq_len * topology.data.step_packs,
        segment_bytes=round(topology.store.segment_gib * GIB),
        num_writer_threads=topology.engines.num_writer_threads or (1 if device == "cpu" else 2),
        train=_train(topology, merged, device, dtype),
    )


def _train(topology: Topology, facts: TargetFacts, device: str, dtype: str) -> dict[str, Any]:
    """The fields for `TrainConfig.from_flat`; what other keys decide wins over what is given."""
    algorithm, run = topology.draft.algorithm, topology.run
    owned = {
        "speculator_type": algorithm,
        "verifier_name_or_path": facts.path or topology.target.model,
        "trust_remote_code": topology.target.trust_remote_code,
        "target_layer_ids": list(topology.target.layers),
        "data_path": topology.data.path,
        "total_seq_len": topology.data.seq_len,
        "train_data_ratio": round(1 - topology.data.validation_frac, 9),
        "hidden_states_dtype": dtype,
        "seed": run.seed,
        "fsdp_shard": topology.trainers.sharding == "fsdp",
        "run_name": topology.name,
    }
    ends = {name: value for name, value in (("max_steps", run.max_steps), ("epochs", run.epochs)) if value}
    return {**(cpu_defaults(algorithm) if device == "cpu" else {}), **topology.draft.train, **owned, **ends}
