"""One real engine on the tiny target, its store and a reader: what the members Master and Engine make of a plan."""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa

from dspark_train.data.dataset import write_index
from dspark_train.data.target import read_target_facts
from dspark_train.engine.engine import Engine
from dspark_train.engine.extract import HiddenShape, read_answer, request_body
from dspark_train.engine.probe import read_sample, wait_for
from dspark_train.plan.build import build_plan
from dspark_train.plan.run_layout import RunLayout
from dspark_train.store.master import Master
from dspark_train.store.on_mooncake import MooncakeClient
from dspark_train.topology.resolve import resolve
from dspark_train.topology.schema import Topology
from tests.engine.fakes import FakeLedger

ADDRESS, SEQ_LEN, LAYERS, WIDTH, VOCAB = "127.0.0.1", 512, (1, 2), 64, 512
SHAPE = HiddenShape(len(LAYERS) + 1, WIDTH, "float32")
REQUEST_TIMEOUT_S = 40.0
LENGTHS = [30, 20, 200, 7, 64, 3, 100, 41, 12, 5]
"""Of the samples in the data set."""


def topology(target: Path, data: Path, engines: Mapping[str, Any] | None = None) -> Topology:
    """engines: keys of that section that are to be others."""
    return Topology.model_validate(
        {
            "name": "tiny",
            "target": {"model": str(target), "layers": LAYERS},
            "data": {"path": str(data), "seq_len": SEQ_LEN, "step_packs": 2},
            "nodes": {"shared": {"count": 1, "gpus": 0}},
            "engines": {
                "count": {"start": 1, "max": 1},
                "max_in_flight": 4,
                "max_in_flight_tokens": SEQ_LEN,
                "request_timeout_s": REQUEST_TIMEOUT_S,
                "start_timeout_s": 240,
                **(engines or {}),
            },
            "trainers": {"ranks": {"start": 1, "max": 1}},
            "store": {"segment_gib": 0.25},
            "run": {"max_steps": 1},
        }
    )


def write_dataset(directory: Path) -> None:
    """Samples of LENGTHS with random tokens."""
    rows = [random_tokens(length, seed) for seed, length in enumerate(LENGTHS)]
    table = pa.table(
        {"input_ids": pa.array(rows, pa.list_(pa.int64())), "loss_mask": pa.array(rows, pa.list_(pa.int64()))}
    )
    (directory / "dataset").mkdir(parents=True)
    with (
        pa.OSFile(str(directory / "dataset" / "0.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema) as writer,
    ):
        writer.write_table(table)
    (directory / "dataset" / "state.json").write_text(json.dumps({"_data_files": [{"filename": "0.arrow"}]}))
    write_index(directory, target="tiny", seq_len=SEQ_LEN, inputs="", options={})


def random_tokens(num_tokens: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, num_tokens).tolist()


@dataclass
class Rig:
    """master, engine and reader are up once :meth:`start` has returned; what was made is stopped by :meth:`stop`."""

    root: Path
    target: Path
    engines: Mapping[str, Any] = field(default_factory=dict)
    readers: list[MooncakeClient] = field(default_factory=list)
    loop: asyncio.Runner = field(default_factory=asyncio.Runner)
    """The one event loop of the engine's async methods, as its actor has one."""
    num_keys: int = 0
    master: Any = None
    engine: Any = None

    def start(self) -> None:
        data = self.root / "data"
        write_dataset(data)
        layout = RunLayout(self.root / "run")
        layout.root.mkdir()
        resolved = resolve(topology(self.target, data, self.engines), read_target_facts(str(self.target)))
        layout.resolved.write_text(resolved.model_dump_json())
        plan = build_plan(resolved)
        layout.plan.write_text(plan.model_dump_json())
        self.ledger = FakeLedger(LENGTHS, "")
        self.master = Master(str(layout.root), self.ledger)
        self.engine = Engine(str(layout.root), "engine-1.0", 0, self.ledger)
        hosts = {node.name: ADDRESS for node in plan.nodes}
        ports = {f"master.{name}": port for name, port in self.master.reserve_ports().items()}
        self.rpc = self.master.start(hosts, ports)["rpc"]
        ports |= {f"engine-1.0.{name}": port for name, port in self.engine.reserve_ports().items()}
        self.url = self.engine.start(hosts, ports)["url"]
        self.reader = self.new_reader()
        self.ledger.segment = self.reader.segment

    def stop(self) -> None:
        if self.engine:
            self.loop.run(self.engine.stop(10))
            self.loop.run(self.engine.stop(10))
        for reader in self.readers:
            reader.close()
        if self.master:
            self.master.stop(5)
            self.master.stop(5)
        self.loop.close()

    @property
    def status(self) -> dict[str, Any]:
        return self.loop.run(self.engine.status())

    def new_reader(self) -> MooncakeClient:
        """A client with a segment, as a rank has one."""
        client = MooncakeClient(
            local_hostname=ADDRESS,
            master=self.rpc,
            segment_bytes=128 * 2**20,
            buffer_bytes=16 * 2**20,
            timeout_s=20,
        )
        self.readers.append(client)
        return client

    def put(self, token_ids: Sequence[int], segment: str) -> str:
        """Have tokens extracted and wait until they are there; returns the key."""
        self.num_keys += 1
        key = f"tiny/1/{self.num_keys}"
        body = request_body(str(self.target), token_ids, key, segment)
        answer = httpx.post(f"{self.url}/v1/completions", json=body, timeout=REQUEST_TIMEOUT_S)
        read_answer(answer, token_ids, key, SHAPE)
        wait_for(self.reader, key, REQUEST_TIMEOUT_S)
        return key

    def extract(self, prompts: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Hidden states [tokens, layers, hidden] of prompts sent at once, read by the reader out of its segment."""
        with ThreadPoolExecutor(len(prompts)) as pool:
            keys = list(pool.map(lambda prompt: self.put(prompt, self.reader.segment), prompts))
        found = []
        for key, prompt in zip(keys, prompts, strict=True):
            hidden, tokens = read_sample(self.reader, key, len(prompt), SHAPE)
            assert tokens.tolist() == list(prompt)
            found.append(hidden)
        self.reader.remove(keys)
        return found

    def settled_keys(self, num_keys: int) -> bool:
        """Whether the store comes to hold so many objects."""
        deadline_s = time.monotonic() + REQUEST_TIMEOUT_S
        while self.master.status()["num_keys"] != num_keys:
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.05)
        return True
