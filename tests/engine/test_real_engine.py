"""The real vLLM with the connector, through the real Mooncake, against transformers: one engine for all tests here."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from dspark_train.store.tether import group_alive
from tests.engine.fakes import FakeLedger
from tests.engine.rig import LAYERS, LENGTHS, Rig, random_tokens

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]
CLOSE = 1e-5
"""Largest difference, relative to the largest value of the layer."""
Forward = Callable[[list[int]], np.ndarray]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory, tiny_target: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path_factory.mktemp("rig"), tiny_target)
    try:
        rig.start()
        yield rig
        pid = rig.status["pid"]
    finally:
        rig.stop()
    assert not group_alive(pid)


@pytest.fixture(scope="module")
def forward(tiny_target: Path) -> Forward:
    """Hidden states [tokens, layers, hidden] by transformers: of LAYERS, and of the last layer before the norm."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_target, dtype=torch.float32).eval()
    before_norm: list[torch.Tensor] = []
    model.model.norm.register_forward_pre_hook(lambda module, inputs: before_norm.append(inputs[0]))

    def run(token_ids: list[int]) -> np.ndarray:
        before_norm.clear()
        with torch.no_grad():
            states = model(torch.tensor([token_ids]), output_hidden_states=True).hidden_states
        return torch.stack([*(states[i][0] for i in LAYERS), before_norm[0][0]], dim=1).numpy()

    return run


def difference(found: np.ndarray, wanted: np.ndarray) -> float:
    assert found.shape == wanted.shape
    return max(
        float(np.abs(found[:, i] - wanted[:, i]).max() / np.abs(wanted[:, i]).max()) for i in range(wanted.shape[1])
    )


def test_the_probe_makes_a_started_engine_ready_and_leaves_nothing_behind(rig):
    assert rig.status["state"] == "starting"
    rig.engine.probe(rig.reader.segment)
    assert rig.status["state"] == "ready"
    assert rig.settled_keys(0)


@pytest.mark.parametrize("num_tokens", [5, 100, 511])
def test_what_arrives_equals_a_forward_of_transformers(rig, forward, num_tokens):
    prompt = random_tokens(num_tokens, seed=num_tokens)
    assert difference(rig.extract([prompt])[0], forward(prompt)) < CLOSE


def test_the_last_stored_layer_is_before_the_final_norm(rig, forward, tiny_target):
    import torch
    from transformers import AutoModelForCausalLM

    prompt = random_tokens(50, seed=1000)
    model = AutoModelForCausalLM.from_pretrained(tiny_target, dtype=torch.float32)
    last = torch.from_numpy(rig.extract([prompt])[0][:, -1].copy())
    with torch.no_grad():
        logits = model.lm_head(model.model.norm(last))
        wanted = model(torch.tensor([prompt])).logits[0]
    assert float((logits - wanted).abs().max() / wanted.abs().max()) < 1e-4
    assert difference(last.numpy()[:, None], forward(prompt)[:, -1:]) < CLOSE


def test_eight_requests_in_one_batch_do_not_mix(rig, forward):
    prompts = [random_tokens(length, seed=2000 + length) for length in (17, 33, 64, 5, 120, 77, 16, 48)]
    for hidden, prompt in zip(rig.extract(prompts), prompts, strict=True):
        assert difference(hidden, forward(prompt)) < CLOSE


def test_prompts_out_of_the_prefix_cache_are_as_right(rig, forward):
    prompt = random_tokens(200, seed=3000)
    shared = prompt[:160] + random_tokens(100, seed=3001)
    for _ in range(2):
        assert difference(rig.extract([prompt])[0], forward(prompt)) < CLOSE
    assert difference(rig.extract([shared])[0], forward(shared)) < CLOSE


def test_objects_go_into_the_segment_that_the_request_names(rig):
    other = rig.new_reader()
    key = rig.put(random_tokens(20, seed=4000), other.segment)
    assert rig.reader.exist([key]) == [True]
    other.close()
    deadline_s = time.monotonic() + 30
    while rig.reader.exist([key])[0]:
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def test_a_request_without_a_key_puts_nothing_and_is_answered(rig):
    body = {"model": str(rig.target), "prompt": [5, 6, 7], "max_tokens": 4}
    answer = httpx.post(f"{rig.url}/v1/completions", json=body, timeout=40)
    assert answer.status_code == 200
    assert answer.json()["kv_transfer_params"] is None
    assert rig.settled_keys(0)


def test_the_feeder_has_a_whole_data_set_extracted_and_counts_it(rig):
    async def feed() -> dict:
        await rig.engine.feed()
        await rig.engine.feed()
        deadline_s = time.monotonic() + 60
        while len(rig.ledger.ready) < len(LENGTHS):
            assert time.monotonic() < deadline_s, (rig.ledger, await rig.engine.status())
            await asyncio.sleep(0.01)
        await rig.engine.drain()
        return await rig.engine.status()

    status = rig.loop.run(feed())
    assert status["tokens"] == sum(LENGTHS)
    assert status["in_flight"] == 0
    assert status["state"] == "draining"
    assert status["busy_s"] > 0
    assert rig.ledger.lost == []
    assert rig.master.status()["num_evicted"] == 0
    assert isinstance(rig.ledger, FakeLedger)
    rig.reader.remove(list(rig.ledger.ready))


def test_a_killed_engine_is_dead_with_the_reason_and_leaves_no_process(rig):
    pid = rig.status["pid"]
    os.kill(pid, signal.SIGKILL)
    deadline_s = time.monotonic() + 30
    while rig.status["state"] != "dead" or group_alive(pid):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    assert "vllm serve exited with code -9" in rig.status["error"]
