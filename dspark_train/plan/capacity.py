"""Bytes of the run, by arithmetic, and the refusal of a store that would stall it. Pure."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from dspark_train.errors import Problem
from dspark_train.plan.draft_size import draft_state_bytes
from dspark_train.plan.spec import Capacity
from dspark_train.topology.resolve import GIB, Resolved

TOKEN_ID_BYTES = 8
"""A sample's token ids are stored behind its hidden states."""
_STAGING_GRANULE_BYTES = 64 * 2**20
"""hs-connectors grows a writer's buffer by whole granules."""


def plan_capacity(resolved: Resolved, num_engines: int, num_ranks: int) -> Capacity:
    """The bytes of a run with so many engines and ranks. None where the target's hidden size is unknown."""
    topology, per_token = resolved.topology, resolved.bytes_per_token
    known = per_token is not None
    pack_bytes = topology.data.seq_len * ((per_token or 0) + TOKEN_ID_BYTES)
    share_packs = -(-topology.data.step_packs // num_ranks)
    in_flight_bytes = num_engines * in_flight_tokens(resolved) * ((per_token or 0) + TOKEN_ID_BYTES)
    needed, segment_needed = _needed(resolved, num_ranks, pack_bytes, in_flight_bytes)
    return Capacity(
        bytes_per_token=per_token,
        step_bytes=resolved.step_bytes,
        in_flight_bytes=in_flight_bytes if known else None,
        store_bytes=num_ranks * resolved.segment_bytes,
        store_needed_bytes=needed if known else None,
        link_bytes_per_s_needed=None,
        target_weight_bytes=resolved.facts.weight_bytes,
        draft_state_bytes=draft_state_bytes(resolved),
        ring_bytes=topology.trainers.prefetch_steps * share_packs * pack_bytes if known else None,
        staging_bytes=resolved.num_writer_threads * _whole(pack_bytes, _STAGING_GRANULE_BYTES) if known else None,
        segment_bytes=resolved.segment_bytes,
        segment_needed_bytes=segment_needed if known else None,
    )


def in_flight_tokens(resolved: Resolved) -> int:
    """Tokens that one engine may have in flight: bounded by tokens, and by requests of one sample each."""
    engines = resolved.topology.engines
    return min(engines.max_in_flight_tokens, engines.max_in_flight * resolved.topology.data.seq_len)


def store_problem(resolved: Resolved, capacity: Capacity, num_engines: int, num_ranks: int) -> Problem | None:
    """Why the store is too small, with the smallest segment that is not; None where it is large enough or unknown.

    It must hold two steps, one being trained and one being filled, and what the engines have in flight beside them:
    with less, engines wait for room that only a finished step can give.
    """
    needed, segment_needed = capacity.store_needed_bytes, capacity.segment_needed_bytes
    if needed is None or segment_needed is None or capacity.segment_bytes >= segment_needed:
        return None
    store = resolved.topology.store
    hundredths = -(-segment_needed * 100 // GIB)
    text = (
        f"({store.segment_gib:g}) is too small: two steps and what {num_engines} engine{'s'[: num_engines > 1]} may "
        f"have in flight take {needed / GIB:.2f} GiB of {num_ranks} segment{'s'[: num_ranks > 1]} filled to "
        f"store.high_mark_frac ({store.high_mark_frac:g})"
    )
    remedy = f"use {hundredths / 100:g} or more, or lower data.step_packs or engines.max_in_flight_tokens"
    return resolved.topology.problem("store.segment_gib", text, remedy)


def _needed(resolved: Resolved, num_ranks: int, pack_bytes: int, in_flight_bytes: int) -> tuple[int, int]:
    """Bytes of the whole store, and of each segment.

    A rank's own share of two steps must fit its own segment, however the others are filled; a step need not divide
    evenly. That share is at least one pack, so the longest sample fits as well.
    """
    data, high = resolved.topology.data, resolved.topology.store.high_mark_frac
    share_packs = -(-data.step_packs // num_ranks)
    needed = _under_mark(2 * data.step_packs * pack_bytes + in_flight_bytes, high)
    share = _under_mark(2 * share_packs * pack_bytes, high)
    return needed, max(-(-needed // num_ranks), share)


def _under_mark(num_bytes: int, high_mark_frac: float) -> int:
    """The size of which ``num_bytes`` are the part that may be filled."""
    # One byte more than exactly: the ledger computes the mark in floating point, and may find it one byte lower.
    return ceil(num_bytes / Fraction(high_mark_frac)) + 1


def _whole(num_bytes: int, granule_bytes: int) -> int:
    return -(-num_bytes // granule_bytes) * granule_bytes
