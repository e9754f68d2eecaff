"""The knob that slows engines or ranks on purpose."""

import json

from dspark_train.throttle import Throttle


def test_without_a_file_or_with_a_broken_one_nothing_waits(tmp_path):
    throttle = Throttle(tmp_path / "throttle.json")
    assert (throttle.engine_wait_s(1000), throttle.pack_wait_s()) == (0.0, 0.0)
    (tmp_path / "throttle.json").write_text('{"rank_pack_s": ')
    assert Throttle(tmp_path / "throttle.json").pack_wait_s() == 0.0


def test_extractions_queue_behind_one_another_and_the_file_is_read_again(tmp_path):
    now_s = [100.0]
    throttle = Throttle(tmp_path / "throttle.json", clock=lambda: now_s[0])
    (tmp_path / "throttle.json").write_text(json.dumps({"engine_tokens_per_s": 200, "rank_pack_s": 0.5}))
    assert [throttle.engine_wait_s(100), throttle.engine_wait_s(100)] == [0.5, 1.0]
    now_s[0] = 101.0
    assert throttle.engine_wait_s(50) == 0.25
    assert throttle.pack_wait_s() == 0.5
    (tmp_path / "throttle.json").unlink()
    assert throttle.pack_wait_s() == 0.5
    now_s[0] = 102.0
    assert (throttle.pack_wait_s(), throttle.engine_wait_s(10_000)) == (0.0, 0.0)
