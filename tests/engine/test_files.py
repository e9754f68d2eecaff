"""Hidden states as files, with the stand-in as the engine: put while a run goes on, extracted once, lent again."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dspark_train.data.archive import ArchiveInfo, present, sample_key, write_info
from dspark_train.data.dataset import Dataset
from dspark_train.data.target import read_target_facts
from dspark_train.engine.archive import Archive
from dspark_train.engine.engine import Engine
from dspark_train.engine.extraction import Extraction
from dspark_train.engine.probe import read_sample
from dspark_train.engine.stand_in_states import StandInStates
from dspark_train.errors import DataError
from dspark_train.plan.build import build_plan
from dspark_train.plan.run_layout import RunLayout
from dspark_train.plan.vllm_argv import store_root
from dspark_train.store.disk_master import DiskMaster
from dspark_train.store.on_disk import DiskClient
from dspark_train.topology.resolve import Resolved, resolve
from dspark_train.topology.schema import Topology
from tests.engine.fakes import FakeLedger
from tests.engine.rig import ADDRESS, LAYERS, LENGTHS, SHAPE, WIDTH, topology, write_dataset

pytestmark = pytest.mark.real
DEADLINE_S = 60.0
NUM_LAYERS = 4
CUT = 16
STATES = StandInStates((*LAYERS, NUM_LAYERS), WIDTH)


@dataclass
class Place:
    """A data set, a target, and a directory for each kind of file."""

    root: Path

    def resolved(self, *, is_offline: bool, seq_len: int = 512) -> Resolved:
        tree = topology(
            self.root / "target", self.root / "data", {"entry": "dspark_train.engine.stand_in"}
        ).model_dump()
        tree["data"] |= {"hidden_states": str(self.archive) if is_offline else "", "seq_len": seq_len}
        tree["store"] |= {"protocol": "disk", "path": str(self.root / "scratch")}
        return resolve(Topology.model_validate(tree), read_target_facts(str(self.root / "target")))

    @property
    def archive(self) -> Path:
        return self.root / "hidden"

    @property
    def store(self) -> DiskClient:
        return DiskClient(Path(store_root(str(self.root / "scratch"))))

    def run(self, resolved: Resolved) -> Path:
        """The directory of a run that has been planned."""
        layout = RunLayout(self.root / "run")
        layout.root.mkdir(exist_ok=True)
        layout.resolved.write_text(resolved.model_dump_json())
        layout.plan.write_text(build_plan(resolved).model_dump_json())
        return layout.root


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    root = tmp_path_factory.mktemp("files")
    (root / "target").mkdir()
    config = {"hidden_size": WIDTH, "num_hidden_layers": NUM_LAYERS, "vocab_size": 512, "num_attention_heads": 2}
    (root / "target" / "config.json").write_text(json.dumps(config))
    write_dataset(root / "data")
    return Place(root)


@pytest.fixture(scope="module")
def extracted(place: Place) -> list[tuple[int, int]]:
    """The archive made; what was told meanwhile."""
    resolved, dataset = place.resolved(is_offline=True), Dataset.open(place.root / "data")
    write_info(place.archive, ArchiveInfo.of(resolved, dataset))
    told: list[tuple[int, int]] = []
    job = Extraction(resolved, dataset, place.archive, place.root / "logs", lambda *done: told.append(done))
    job.run(list(range(len(LENGTHS))))
    assert job.failed == {}
    return told


@pytest.fixture
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


def until_ready(member: Any, ledger: FakeLedger, num: int) -> Callable[[], Coroutine[Any, Any, dict[str, Any]]]:
    """Has the member feed until so many samples are ready; gives its last status."""

    async def feed() -> dict[str, Any]:
        await member.feed()
        deadline_s = time.monotonic() + DEADLINE_S
        while len(ledger.ready) < num:
            assert time.monotonic() < deadline_s, (ledger, await member.status())
            await asyncio.sleep(0.02)
        return dict(await member.status())

    return feed


def assert_right(store: DiskClient, ledger: FakeLedger, lengths: list[int]) -> None:
    for key, ready in ledger.ready.items():
        sample, _ = ledger.leased[key]
        hidden, tokens = read_sample(store, key, lengths[sample], SHAPE)
        assert np.array_equal(hidden, STATES.of(tokens.tolist()))
        assert ready.num_bytes == SHAPE.layout(lengths[sample]).total_bytes


def test_engines_put_files_and_the_store_tells_how_many(place: Place, loop: asyncio.Runner) -> None:
    resolved, ledger = place.resolved(is_offline=False), FakeLedger(LENGTHS, "")
    run = str(place.run(resolved))
    master, engine = DiskMaster(run, ledger), Engine(run, "engine-1.0", 0, ledger)
    hosts = {node.name: ADDRESS for node in build_plan(resolved).nodes}
    try:
        master.start(hosts, {})
        engine.start(hosts, {f"engine-1.0.{name}": port for name, port in engine.reserve_ports().items()})
        engine.probe("")
        status = loop.run(until_ready(engine, ledger, len(LENGTHS))())
        assert (status["state"], status["num_lost"], status["tokens"]) == ("ready", 0, sum(LENGTHS))
        assert_right(place.store, ledger, LENGTHS)
        seen = master.status()
        assert (seen["state"], seen["num_keys"]) == ("ready", len(LENGTHS))
        assert seen["used_bytes"] >= sum(ready.num_bytes for ready in ledger.ready.values())
    finally:
        loop.run(engine.stop(5))
        master.stop(5)
    assert not any(place.store.exist(list(ledger.ready)))


def test_every_sample_is_extracted_once_and_counted(place: Place, extracted: list[tuple[int, int]]) -> None:
    assert extracted[-1] == (len(LENGTHS), sum(LENGTHS))
    assert present(place.archive) == set(range(len(LENGTHS)))
    client = DiskClient(place.archive)
    for sample, num_tokens in enumerate(LENGTHS):
        hidden, tokens = read_sample(client, sample_key(sample), num_tokens, SHAPE)
        assert np.array_equal(hidden, STATES.of(tokens.tolist()))
    assert sorted(path.name for path in place.archive.iterdir() if not path.name.startswith("hs_")) == [
        "hidden_states.json"
    ]


def test_the_archive_lends_what_was_extracted_and_keeps_it(
    place: Place, extracted: object, loop: asyncio.Runner
) -> None:
    ledger = FakeLedger(LENGTHS, "")
    archive = Archive(str(place.run(place.resolved(is_offline=True))), "engine-1.0", 0, ledger)
    archive.start({}, {})
    archive.probe("")
    status = loop.run(until_ready(archive, ledger, len(LENGTHS))())
    assert (status["state"], status["num_lost"], status["tokens"]) == ("ready", 0, sum(LENGTHS))
    assert_right(place.store, ledger, LENGTHS)
    place.store.remove(list(ledger.ready))
    assert present(place.archive) == set(range(len(LENGTHS)))
    loop.run(archive.stop(1))
    loop.run(archive.stop(1))


def test_samples_are_lent_as_short_as_they_are_trained(place: Place, extracted: object, loop: asyncio.Runner) -> None:
    lengths = [min(length, CUT) for length in LENGTHS]
    ledger = FakeLedger(lengths, "")
    archive = Archive(str(place.run(place.resolved(is_offline=True, seq_len=CUT))), "engine-1.0", 0, ledger)
    archive.start({}, {})
    archive.probe("")
    loop.run(until_ready(archive, ledger, len(LENGTHS))())
    assert_right(place.store, ledger, lengths)
    place.store.remove(list(ledger.ready))
    loop.run(archive.stop(1))


def test_a_damaged_sample_is_lost_and_the_others_are_lent(
    place: Place, extracted: object, loop: asyncio.Runner
) -> None:
    damaged = place.archive / f"{sample_key(3)}.safetensors"
    whole = damaged.read_bytes()
    ledger = FakeLedger(LENGTHS, "")
    archive = Archive(str(place.run(place.resolved(is_offline=True))), "engine-1.0", 0, ledger)
    archive.start({}, {})
    archive.probe("")
    damaged.write_bytes(whole[:-1])
    try:
        loop.run(until_ready(archive, ledger, len(LENGTHS) - 1)())
        assert {ledger.leased[lost.key][0] for lost in ledger.lost} == {3}
        assert "not a file of hidden states" in ledger.lost[0].reason
    finally:
        damaged.write_bytes(whole)
        place.store.remove(list(ledger.ready))
        loop.run(archive.stop(1))


def test_an_archive_that_lacks_samples_does_not_start(place: Place, extracted: object) -> None:
    lacking = place.archive / f"{sample_key(5)}.safetensors"
    lacking.rename(place.root / "away")
    try:
        archive = Archive(str(place.run(place.resolved(is_offline=True))), "engine-1.0", 0, FakeLedger(LENGTHS, ""))
        with pytest.raises(DataError, match="lacks the hidden states of 1 of 10 samples, the first of them 5"):
            archive.start({}, {})
    finally:
        (place.root / "away").rename(lacking)
