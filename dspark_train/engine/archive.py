"""The member "engine-N.0" of a run that trains from extracted hidden states: lends files where vLLM would make them.

It leases as a feeder does, and a sample is ready when a link to its file stands under the lease's key. So the ledger,
its order and its counting of bytes are the same as with engines; links take no room.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dspark_train.data.archive import check_archive, sample_key
from dspark_train.data.dataset import Dataset
from dspark_train.engine.extract import HiddenShape
from dspark_train.engine.probe import check_hidden, read_sample
from dspark_train.errors import PeerError, SampleMissing, StartError, StoreError, WrongData
from dspark_train.peers import Peers
from dspark_train.plan.run_layout import RunLayout
from dspark_train.plan.vllm_argv import store_root
from dspark_train.schedule.messages import Lease, Lost, Ready
from dspark_train.store.on_disk import DiskClient, disk_error, sample_path
from dspark_train.store.sample_file import NAMES, SampleFile, read_header, write_sample
from dspark_train.topology.resolve import Resolved

LEASE_WAIT_S = 5.0
CALL_TIMEOUT_S = 15.0
RETRY_S = 0.5
MAX_SAMPLES = 64
"""Lent in one go: few enough that ranks can begin with the first, many enough that calls do not count."""

logger = logging.getLogger(__name__)


class Archive:
    """Serves one directory of hidden states. Methods as of `engine.Engine`, whose place it takes."""

    def __init__(self, run_dir: str, name: str, node_rank: int, peers: Peers) -> None:
        layout = RunLayout(Path(run_dir))
        self._name, self._peers = name, peers
        self._resolved = Resolved.model_validate_json(layout.resolved.read_text(encoding="utf-8"))
        self._root = Path(store_root(self._resolved.topology.store.path))
        self._directory = Path(self._resolved.topology.data.hidden_states)
        self._shape = HiddenShape.of(self._resolved)
        self._dataset: Dataset | None = None
        self._store: DiskClient | None = None
        self._task: asyncio.Task[None] | None = None
        self._state, self._error = "starting", ""
        self._tokens = self._num_lost = self._num_in_hand = 0
        self._busy_s = self._blocked_s = 0.0
        self._success_s = time.monotonic()
        self._life: float | None = None

    def reserve_ports(self) -> dict[str, int]:
        """It has none."""
        return {}

    def start(self, hosts: Mapping[str, str], ports: Mapping[str, int]) -> dict[str, Any]:
        """See that every sample is there. Returns {"pid", "url", "ports"}. Raises DataError, StoreError."""
        self._dataset = Dataset.open(self._resolved.topology.data.path)
        check_archive(self._directory, self._resolved, self._dataset)
        self._store = DiskClient(self._root)
        return {"pid": os.getpid(), "url": "", "ports": {}}

    def probe(self, segment: str) -> None:
        """Check the first sample; the archive is ready then. Raises StartError, saying what is wrong."""
        assert self._dataset is not None, "start it first"
        expected = self._dataset.token_ids(0)
        try:
            num_tokens = self._num_tokens(0)
            hidden, tokens = read_sample(DiskClient(self._directory), sample_key(0), num_tokens, self._shape)
            if not np.array_equal(tokens, expected[:num_tokens]):
                raise WrongData("its tokens are not those of the data set's first sample")
            if num_tokens > 1:
                check_hidden(hidden)
        except (WrongData, SampleMissing, OSError) as error:
            raise StartError(f"{self._directory}/{sample_key(0)}.safetensors is of no use: {error}") from error
        self._state = "ready"

    def _num_tokens(self, sample: int) -> int:
        """Tokens that a sample's file has. Raises WrongData, OSError."""
        descriptor = os.open(sample_path(self._directory, sample_key(sample)), os.O_RDONLY)
        try:
            return read_header(descriptor).shape[0]
        finally:
            os.close(descriptor)

    async def feed(self, life: float | None = None) -> None:
        """Begin to lend; once is enough. life: of this engine, as `Engine.feed` takes it."""
        self._life = life
        if self._task is None:
            self._success_s = time.monotonic()
            self._task = asyncio.get_running_loop().create_task(self._serve(), name="lend")

    async def status(self) -> dict[str, Any]:
        """As `Engine.status`."""
        if self._task is not None and self._task.done() and not self._task.cancelled() and self._task.exception():
            self._state, self._error = "dead", f"lending failed: {self._task.exception()!r}"
        return {
            "state": self._state,
            "pid": os.getpid(),
            "tokens": self._tokens,
            "busy_s": self._busy_s,
            "blocked_s": self._blocked_s,
            "in_flight": self._num_in_hand,
            "num_lost": self._num_lost,
            "since_success_s": time.monotonic() - self._success_s,
            "error": self._error,
        }

    async def drain(self) -> None:
        """Lease no more."""
        self._state = "draining"

    async def stop(self, grace_s: float) -> None:
        """End lending; twice is fine."""
        self._state = "stopped"
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=grace_s)

    # -- lending ---------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        while self._state == "ready":
            began_s = time.monotonic()
            leases = await self._call("lease", MAX_SAMPLES, self._resolved.topology.engines.max_in_flight_tokens)
            leased_s = time.monotonic()
            self._blocked_s += leased_s - began_s
            if not leases:
                continue
            self._num_in_hand, self._error = len(leases), ""
            ready, lost = await asyncio.to_thread(self._lend, leases)
            unwanted = await self._call("report", ready, lost)
            await asyncio.to_thread(self._remove, unwanted)
            self._num_in_hand = 0
            self._busy_s += time.monotonic() - leased_s

    async def _call(self, method: str, *args: Any) -> Any:
        """The ledger's answer, however long that takes: nothing is lost meanwhile."""
        args = (*args, LEASE_WAIT_S, self._life) if method == "lease" else (*args, self._life)
        while True:
            try:
                answer = await self._peers.acall("ledger", method, self._name, *args, timeout_s=CALL_TIMEOUT_S)
            except PeerError as error:
                self._note(f"the ledger does not answer: {error}")
                await asyncio.sleep(RETRY_S)
            else:
                return answer

    def _lend(self, leases: Sequence[Lease]) -> tuple[list[Ready], list[Lost]]:
        ready, lost = [], []
        for lease in leases:
            try:
                self._lend_one(lease)
            except (WrongData, StoreError, OSError) as error:
                lost.append(Lost(lease.key, f"{sample_key(lease.sample)}: {error}"))
                self._num_lost += 1
                self._note(lost[-1].reason)
            else:
                ready.append(Ready(lease.key, self._shape.layout(lease.num_tokens).total_bytes))
                self._tokens += lease.num_tokens
        if ready:
            self._success_s = time.monotonic()
        return ready, lost

    def _lend_one(self, lease: Lease) -> None:
        """Link to the sample's file, or write its beginning where it was extracted longer than it is trained."""
        source, path = sample_path(self._directory, sample_key(lease.sample)), sample_path(self._root, lease.key)
        descriptor = os.open(source, os.O_RDONLY)
        try:
            found = read_header(descriptor)
            self._check(found, lease.num_tokens)
            path.parent.mkdir(parents=True, exist_ok=True)
            if found.shape[0] == lease.num_tokens:
                path.symlink_to(source.absolute())
            else:
                self._write_beginning(descriptor, found, lease, path)
        except OSError as error:
            raise disk_error("lend", str(source), error) from error
        finally:
            os.close(descriptor)

    def _check(self, found: SampleFile, num_tokens: int) -> None:
        have, want = (*found.shape[1:], found.dtype), (self._shape.num_layers, self._shape.hidden_size)
        if have != (*want, NAMES[self._shape.dtype]) or found.shape[0] < num_tokens:
            wanted = f"{num_tokens} tokens or more of {list(want)} {NAMES[self._shape.dtype]}"
            raise WrongData(f"its hidden states are {list(found.shape)} {found.dtype}, and {wanted} are needed")

    def _write_beginning(self, descriptor: int, found: SampleFile, lease: Lease, path: Path) -> None:
        layout, (states, ids) = self._shape.layout(lease.num_tokens), found.regions
        hidden = np.frombuffer(os.pread(descriptor, layout.hidden_bytes, states.offset), dtype=np.uint8)
        tokens = np.frombuffer(os.pread(descriptor, layout.tokens_bytes, ids.offset), dtype="<i8")
        write_sample(path, hidden, (lease.num_tokens, *found.shape[1:]), self._shape.dtype, tokens)

    def _remove(self, keys: Sequence[str]) -> None:
        assert self._store is not None
        try:
            self._store.remove(keys)
        except StoreError as error:
            self._note(f"{len(keys)} objects that nobody wants are still there: {error}")

    def _note(self, text: str) -> None:
        if text != self._error:
            logger.warning("%s: %s", self._name, text)
        self._error = text
