"""Every sample's hidden states into one directory, by engines on this machine: made once, trained from many times.

Asks vLLM as a feeder does and with the same command, but for no ledger: what is there already is left out, so an
extraction that was broken off goes on where it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dspark_train.data.archive import sample_key
from dspark_train.data.dataset import Dataset
from dspark_train.engine.engine import NUM_STARTS, probe_tokens
from dspark_train.engine.extract import EngineRefused, HiddenShape
from dspark_train.engine.in_flight import Flight
from dspark_train.engine.marker import marker_key
from dspark_train.engine.probe import check_hidden, probe, read_sample, wait_for
from dspark_train.engine.requests import Requests
from dspark_train.engine.server import VllmServer
from dspark_train.errors import DSparkError, SampleMissing, StoreError, WrongData
from dspark_train.plan.commands import engine_env
from dspark_train.plan.spec import bind
from dspark_train.plan.vllm_argv import disk_transfer_config, serve_argv
from dspark_train.schedule.messages import Lease
from dspark_train.store.on_disk import DiskClient
from dspark_train.store.ports import AddressInUse, PortLock, reserve_ports
from dspark_train.topology.resolve import Resolved

HOST = "127.0.0.1"
NODE = "here"
STOP_GRACE_S = 10.0

Narrate = Callable[[int, int], None]
"""Is told how many samples are done, and their tokens, whenever one is."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Server:
    """One engine of an extraction, up and probed."""

    process: VllmServer
    ports: dict[str, PortLock]

    def stop(self) -> None:
        """End it; twice is fine."""
        self.process.stop(STOP_GRACE_S)
        for lock in self.ports.values():
            lock.release()


@dataclass
class Extraction:
    """What is to be extracted, and how far it is. failed: sample -> why it was given up."""

    resolved: Resolved
    dataset: Dataset
    directory: Path
    logs: Path
    narrate: Narrate
    failed: dict[int, str] = field(default_factory=dict)
    num_done: int = 0
    num_tokens: int = 0

    def run(self, samples: list[int]) -> None:
        """Extract these. Raises StartError where an engine does not start, DSparkError where too much goes wrong."""
        engines = self.resolved.topology.engines
        with contextlib.ExitStack() as stack:
            servers = []
            for index in range(1, engines.count.start + 1):
                servers.append(self._start(index))
                stack.callback(servers[-1].stop)
            asyncio.run(self._extract(samples, servers))

    # -- engines -----------------------------------------------------------------------------------------------------

    def _start(self, index: int) -> Server:
        for attempt in range(1, NUM_STARTS + 1):
            ports = reserve_ports(["http"])
            server = Server(self._process(index, ports["http"].port), ports)
            try:
                server.process.start(self.resolved.topology.engines.start_timeout_s)
                self._probe(server, index)
            except AddressInUse:
                server.stop()
                if attempt == NUM_STARTS:
                    raise
            except BaseException:
                server.stop()
                raise
            else:
                return server
        raise AssertionError("the last attempt returns or raises")

    def _process(self, index: int, port: int) -> VllmServer:
        resolved, name = self.resolved, f"engine-{index}.0"
        transfer = disk_transfer_config(resolved, str(self.directory))
        log = self.logs / f"{name}.log"
        hosts, ports = {NODE: HOST}, {f"{name}.http": port}
        argv = serve_argv(resolved, index, [NODE], 0, NODE, transfer)
        env = engine_env(resolved, NODE, 1)
        if resolved.device == "cuda":
            size = resolved.topology.engines.tensor_parallel
            env["CUDA_VISIBLE_DEVICES"] = ",".join(str((index - 1) * size + gpu) for gpu in range(size))
        bound = [bind(text, hosts=hosts, ports=ports, run=name, log=str(log)) for text in argv]
        return VllmServer(bound, env, log, f"http://{HOST}:{port}")

    def _probe(self, server: Server, index: int) -> None:
        resolved, store = self.resolved, DiskClient(self.directory)
        timeout_s, key = resolved.topology.engines.request_timeout_s, f"probe-{index}"
        model, shape = resolved.topology.target.model, HiddenShape.of(resolved)
        try:
            probe(server.process.base_url, model, probe_tokens(self.dataset), key, "", shape, store, timeout_s)
        except DSparkError as error:
            raise server.process.failure(f"the probe extraction of engine {index} is wrong: {error}") from error

    # -- samples -----------------------------------------------------------------------------------------------------

    async def _extract(self, samples: list[int], servers: list[Server]) -> None:
        engines, todo = self.resolved.topology.engines, iter(samples)
        num_workers = max(1, min(engines.max_in_flight, engines.max_in_flight_tokens // self._seq_len))
        requests = [self._requests(server, num_workers) for server in servers]
        try:
            async with asyncio.TaskGroup() as group:
                for server, asks in zip(servers, requests, strict=True):
                    for _ in range(num_workers):
                        group.create_task(self._work(todo, server, asks))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        finally:
            for asks in requests:
                await asks.close()

    @property
    def _seq_len(self) -> int:
        return self.resolved.topology.data.seq_len

    def _requests(self, server: Server, num_workers: int) -> Requests:
        return Requests(
            base_url=server.process.base_url,
            model=self.resolved.topology.target.model,
            shape=HiddenShape.of(self.resolved),
            dataset=self.dataset,
            max_samples=num_workers,
            transport=None,
            clock=time.monotonic,
        )

    async def _work(self, todo: Iterator[int], server: Server, asks: Requests) -> None:
        store = DiskClient(self.directory)
        for sample in todo:
            num_tokens = min(int(self.dataset.lengths[sample]), self._seq_len)
            if reason := await self._attempts(sample, num_tokens, server, asks, store):
                self._give_up(sample, reason)
            else:
                self.num_done, self.num_tokens = self.num_done + 1, self.num_tokens + num_tokens
                self.narrate(self.num_done, self.num_tokens)

    async def _attempts(self, sample: int, num_tokens: int, server: Server, asks: Requests, store: DiskClient) -> str:
        """Extract one sample, again where it fails. Returns why it is not to be had, "" where it is there."""
        key, reason = sample_key(sample), ""
        for attempt in range(1, self.resolved.topology.ledger.max_attempts + 1):
            begun_s, timeout_s = time.monotonic(), self.resolved.topology.engines.request_timeout_s
            lease = Lease(key, sample, num_tokens, "", 0, attempt, timeout_s)
            try:
                await asks.extract(Flight(lease, begun_s, begun_s + timeout_s))
                left_s = begun_s + timeout_s - time.monotonic()
                await asyncio.to_thread(self._take_in, store, sample, num_tokens, left_s)
                return ""
            except (TimeoutError, EngineRefused, WrongData, SampleMissing, StoreError) as error:
                reason = str(error) or f"no answer within {timeout_s:g} s"
                logger.warning("%s: %s", key, reason)
                if server.process.exit_code() is not None:
                    raise server.process.exited() from error
                await asyncio.to_thread(store.remove, [key, marker_key(key)])
        return reason

    def _take_in(self, store: DiskClient, sample: int, num_tokens: int, timeout_s: float) -> None:
        """Wait for the file and look at it. Raises WrongData, SampleMissing."""
        key = sample_key(sample)
        wait_for(store, key, max(0.0, timeout_s))
        hidden, tokens = read_sample(store, key, num_tokens, HiddenShape.of(self.resolved))
        if tokens.tolist() != self.dataset.token_ids(sample)[:num_tokens].tolist():
            raise WrongData("it holds other tokens than were sent")
        if num_tokens > 1:
            check_hidden(hidden)

    def _give_up(self, sample: int, reason: str) -> None:
        self.failed[sample] = reason
        most = self.resolved.topology.ledger.max_failed_frac * len(self.dataset)
        if len(self.failed) > most:
            raise WrongData(
                f"{len(self.failed)} samples could not be extracted, more than ledger.max_failed_frac allows; the "
                f"last, {sample}: {reason}. See {self.logs}"
            )
