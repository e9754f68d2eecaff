import hashlib

import numpy as np

from dspark_train.schedule.seeds import draw_seed, pack_digest, step_hash


def test_a_draw_seed_follows_from_what_is_drawn_for_alone():
    assert draw_seed(42, 1, 7, 3) == draw_seed(42, 1, 7, 3)
    seeds = {draw_seed(s, e, k, p) for s in range(4) for e in range(4) for k in range(4) for p in range(4)}
    assert len(seeds) == 256
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_pack_digest_hashes_rows_lengths_and_ids_as_int64_little_endian():
    ids = [5, 258]
    expected = hashlib.sha256(
        bytes([7, *[0] * 7]) + bytes([2, *[0] * 7]) + bytes([5, *[0] * 7]) + bytes([2, 1, *[0] * 6])
    ).digest()
    assert pack_digest([(7, np.array(ids, "<i8").tobytes())]) == expected


def test_moving_a_token_between_samples_changes_the_digest():
    one, two = np.array([1], "<i8").tobytes(), np.array([1, 2], "<i8").tobytes()
    assert pack_digest([(2, one), (2, two)]) != pack_digest([(2, two), (2, one)])
    assert pack_digest([(1, two)]) != pack_digest([(1, one), (2, b"")])


def test_a_step_hash_depends_on_the_order_of_packs():
    first, second = pack_digest([(0, b"")]), pack_digest([(1, b"")])
    assert step_hash([first, second]) == hashlib.sha256(first + second).hexdigest()
    assert step_hash([first, second]) != step_hash([second, first])
