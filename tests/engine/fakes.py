"""A ledger and an engine in this process, for tests of the feeder: the engine puts into the in-memory store."""

import asyncio
import json
from dataclasses import dataclass, field

import httpx
import numpy as np

from dspark_train.engine.extract import HiddenShape
from dspark_train.engine.marker import Marker, marker_key
from dspark_train.errors import PeerTimeout
from dspark_train.schedule.messages import Lease, Lost, Ready
from dspark_train.store.in_memory import InMemoryServer

SHAPE = HiddenShape(num_layers=3, hidden_size=4, dtype="float32")
LEASE_S = 60.0


class Tokens:
    """A data set whose sample i has the tokens i, i+1, ..."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    def token_ids(self, sample: int) -> np.ndarray:
        return np.arange(sample, sample + self.lengths[sample], dtype=np.int64)


@dataclass
class FakeLedger:
    """Leases every sample once, in order; a lost one again under a new key. The only peer of its `Peers`."""

    lengths: list[int]
    segment: str
    ready: dict[str, Ready] = field(default_factory=dict)
    lost: list[Lost] = field(default_factory=list)
    asked: list[tuple[int, int]] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    unwanted: list[str] = field(default_factory=list)
    num_unreachable: int = 0
    num_answers_lost: int = 0

    def __post_init__(self) -> None:
        self.planned = [(sample, 1) for sample in range(len(self.lengths))]
        self.leased: dict[str, tuple[int, int]] = {}

    def call(self, name: str, method: str, *args: object, timeout_s: float) -> object:
        return asyncio.run(self.acall(name, method, *args, timeout_s=timeout_s))

    async def acall(self, name: str, method: str, *args: object, timeout_s: float) -> object:
        assert name == "ledger"
        await asyncio.sleep(0)
        if self.num_unreachable:
            self.num_unreachable -= 1
            raise PeerTimeout("ledger did not answer")
        return await getattr(self, f"_{method}")(*args)

    async def _lease(
        self, engine: str, max_samples: int, max_tokens: int, wait_s: float, life: float | None
    ) -> list[Lease]:
        self.asked.append((max_samples, max_tokens))
        leases = []
        while self.planned and len(leases) < max_samples and self.lengths[self.planned[0][0]] <= max_tokens:
            sample, attempt = self.planned.pop(0)
            max_tokens -= self.lengths[sample]
            key = f"run/0-0-{sample}-{attempt}"
            self.leased[key] = (sample, attempt)
            leases.append(Lease(key, sample, self.lengths[sample], self.segment, 0, attempt, LEASE_S))
        if not leases:
            await asyncio.sleep(min(wait_s, 0.01))
        return leases

    async def _report(self, engine: str, ready: list[Ready], lost: list[Lost], life: float | None) -> list[str]:
        self.ready |= {done.key: done for done in ready}
        self.lost += lost
        for gone in lost:
            sample, attempt = self.leased[gone.key]
            self.planned.append((sample, attempt + 1))
        if self.num_answers_lost:
            self.num_answers_lost -= 1
            raise PeerTimeout("ledger did not answer")
        unwanted, self.unwanted = self.unwanted, []
        return unwanted

    async def _drop_engine(self, engine: str, is_suspect: bool, life: float | None) -> int:
        self.dropped.append(engine)
        return 0


class FakeEngine:
    """Answers like vLLM with our connector. Per sample (the first token of a prompt) it can be told to fail."""

    def __init__(self, server: InMemoryServer) -> None:
        self.store = server.client()
        self.in_flight = self.most_in_flight = self.most_tokens = self._tokens = self.num_requests = 0
        self.answer_s = self.put_s = 0.0
        self.status: dict[int, list[int]] = {}
        """Sample -> statuses of its next answers."""
        self.hangs: set[int] = set()
        self.late_s: dict[int, float] = {}
        """Sample -> how much later than others it is put."""
        self.hangs_at_all = False
        self.trial_status: list[int] = []
        """Statuses of its next answers to requests without a sample."""
        self.num_trials = 0
        self.markers: dict[int, Marker] = {}
        self.wrong_tokens: set[int] = set()
        self.alive = True
        self.ended = False
        self.puts: set[asyncio.Task[None]] = set()
        self.metrics = ""

    def end(self) -> None:
        """End its process."""
        self.alive, self.ended = False, True

    @property
    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self._answer)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/metrics":
            return httpx.Response(200, text=self.metrics) if self.metrics else httpx.Response(404)
        body = json.loads(request.content)
        tokens, params = body["prompt"], body.get("kv_transfer_params")
        self.num_requests += 1
        if not self.alive:
            raise httpx.ConnectError("connection refused", request=request)
        if params is None:
            return await self._answer_trial()
        key = params["key"]
        self._enter(len(tokens))
        try:
            await asyncio.sleep(3600 if self.hangs_at_all or tokens[0] in self.hangs else self.answer_s)
        finally:
            self._leave(len(tokens))
        if self.status.get(tokens[0]):
            return httpx.Response(self.status[tokens[0]].pop(0), text="EngineCore encountered an issue")
        task = asyncio.get_running_loop().create_task(self._put(tokens, key, params["segment"]))
        self.puts.add(task)
        task.add_done_callback(self.puts.discard)
        echo = tokens[::-1] if tokens[0] in self.wrong_tokens else tokens
        answer = {"choices": [{"prompt_token_ids": echo}], "kv_transfer_params": manifest(key, len(tokens))}
        return httpx.Response(200, json=answer)

    async def _answer_trial(self) -> httpx.Response:
        """To a request that has nothing put: as the engine itself is, whatever the samples."""
        self.num_trials += 1
        if self.hangs_at_all:
            await asyncio.sleep(3600)
        status = self.trial_status.pop(0) if self.trial_status else 200
        return httpx.Response(status, json={"choices": [{}]})

    def _enter(self, num_tokens: int) -> None:
        self.in_flight, self._tokens = self.in_flight + 1, self._tokens + num_tokens
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        self.most_tokens = max(self.most_tokens, self._tokens)

    def _leave(self, num_tokens: int) -> None:
        self.in_flight, self._tokens = self.in_flight - 1, self._tokens - num_tokens

    async def _put(self, tokens: list[int], key: str, segment: str) -> None:
        await asyncio.sleep(self.put_s + self.late_s.get(tokens[0], 0.0))
        if tokens[0] in self.markers:
            self.store.put(marker_key(key), self.markers[tokens[0]].encode(), segment)
        else:
            self.store.put(key, sample_bytes(tokens), segment)


def manifest(key: str, num_tokens: int) -> dict:
    """What hs-connectors says of a sample of SHAPE, written out from its own rules."""
    hidden_bytes = num_tokens * 3 * 4 * 4
    offset = (hidden_bytes + 63) // 64 * 64
    return {
        "handle": key,
        "version": 1,
        "tensors": {
            "hidden_states": {
                "shape": [num_tokens, 3, 4],
                "dtype": "torch.float32",
                "nbytes": hidden_bytes,
                "offset": 0,
            },
            "token_ids": {"shape": [num_tokens], "dtype": "torch.int64", "nbytes": num_tokens * 8, "offset": offset},
        },
        "metadata": {
            "num_tokens": num_tokens,
            "total_aligned_bytes": (offset + num_tokens * 8 + 63) // 64 * 64,
            "extract_mode": "prompt_only",
        },
        "segment": "",
    }


def sample_bytes(tokens: list[int]) -> bytes:
    """An object as the connector puts it; hidden states count up."""
    layout = SHAPE.layout(len(tokens))
    data = np.zeros(layout.total_bytes, dtype=np.uint8)
    data[: layout.hidden_bytes] = np.arange(len(tokens) * 12, dtype=np.float32).view(np.uint8)
    data[layout.tokens_offset :][: layout.tokens_bytes] = np.array(tokens, dtype=np.int64).view(np.uint8)
    return data.tobytes()
