"""The comparison's objects are what ranks and the peer take them for; its figures are rates and medians."""

import numpy as np
import pytest

from dspark_train.bench.ledger import pure_ops_per_s, service_load
from dspark_train.bench.objects import Objects
from dspark_train.store.protocol import SampleLayout


def small() -> Objects:
    return Objects(num_packs=2, piece_tokens=(5, 3), num_layers=2, hidden_size=8)


def test_an_object_is_finite_states_and_then_the_ids_whose_first_names_it():
    objects = small()
    assert (objects.seq_len, objects.num_samples, objects.num_tokens(3)) == (8, 4, 3)
    layout = SampleLayout(3, 2 * 8 * 2)
    target = np.zeros(1000, np.uint8)
    assert objects.fill(3, target) == layout.total_bytes
    ids = target[layout.tokens_offset :][: layout.tokens_bytes].view(np.int64)
    assert ids.tolist() == objects.token_ids(3).tolist()
    assert ids[0] == 3
    exponents = target[: layout.hidden_bytes].view(np.uint16) & 0x7F80
    assert (exponents != 0x7F80).all()
    assert objects.total_bytes == 2 * objects.pack_bytes == 2 * (SampleLayout(5, 32).total_bytes + layout.total_bytes)


def test_a_whole_epoch_goes_through_the_ledger_bare_and_as_a_service():
    import asyncio

    lengths = np.random.default_rng(1).integers(100, 2000, 3000)
    assert pure_ops_per_s(lengths, 1) > 0
    load = asyncio.run(service_load(lengths, 2))
    assert load.ops_per_s > 0
    assert load.core_frac > 0


@pytest.mark.torch
def test_the_figures_of_the_comparison_are_medians_of_rates_and_of_ratios():
    from dspark_train.bench.ingest import figures

    def answer(bytes_: float, wall_s: float, cpu_s: float = 0.0) -> dict[str, float]:
        return {"bytes": bytes_, "wall_s": wall_s, "cpu_s": cpu_s}

    pairs = [
        {"memcpy": answer(8e9, 1), "read": answer(7e9, 1), "ours": answer(6e9, 1, 3), "peer": answer(1e9, 2, 3)},
        {"memcpy": answer(4e9, 1), "read": answer(3e9, 1), "ours": answer(4e9, 1, 1), "peer": answer(1e9, 4, 3)},
        {"memcpy": answer(8e9, 1), "read": answer(7e9, 1), "ours": answer(8e9, 1, 4), "peer": answer(1e9, 1, 2)},
    ]
    puts = [{"put": answer(1e9, 2), "loopback": answer(1e9, 1)}]
    made = figures(pairs, puts, {"ours": 3, "peer": 5}, small())
    assert made["ours_bytes_per_s"] == 6e9
    assert made["memcpy_bytes_per_s"] == 8e9
    assert made["ours_over_memcpy"] == 1.0
    assert made["ours_over_memcpy_spread"] == [0.75, 1.0]
    assert made["ours_over_peer"] == 12.0
    assert (made["ours_cpu_s_per_gb"], made["peer_cpu_s_per_gb"]) == (0.5, 3.0)
    assert (made["put_over_loopback"], made["ours_peak_bytes"], made["peer_peak_bytes"]) == (0.5, 3, 5)
