"""The member "engine-N.R": one node's part of a vLLM engine, and on the engine's first node its probe and its feeder.

Supervises; extracts nothing itself. Ready means that /health answers and one probe extraction was right.
"""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dspark_train.data.dataset import Dataset
from dspark_train.engine.extract import HiddenShape
from dspark_train.engine.feeder import Feeder
from dspark_train.engine.in_flight import Limits
from dspark_train.engine.probe import probe
from dspark_train.engine.puts import limit_transfers
from dspark_train.engine.server import VllmServer
from dspark_train.errors import DSparkError, StartError, WrongData
from dspark_train.peers import Peers
from dspark_train.plan.run_layout import RunLayout
from dspark_train.plan.spec import Plan, bind_process
from dspark_train.store.connect import connect
from dspark_train.store.interface import interface_of
from dspark_train.store.ports import AddressInUse, PortLock, reserve_ports
from dspark_train.store.protocol import StoreClient
from dspark_train.throttle import Throttle
from dspark_train.topology.resolve import Resolved

NUM_STARTS = 3
"""Starts with new ports each, where one was taken in spite of its reservation."""
PROBE_TOKENS = 64
FENCE_FACTOR = 3.0
"""A silent ledger is replaced after `supervision.silence_s`: an engine waits well beyond that before it ends itself."""
STORE_TIMEOUT_S = 20.0
"""An existence check or a removal; both ask the master only."""

GIVEN_UP_GRACE_S = 5.0
"""For an engine that is of no use any more to end by itself."""

logger = logging.getLogger(__name__)


class Engine:
    """One process of an engine. ``node_rank`` 0 answers requests; the others only take part."""

    def __init__(self, run_dir: str, name: str, node_rank: int, peers: Peers) -> None:
        self._layout = layout = RunLayout(Path(run_dir))
        self._name, self._node_rank, self._peers = name, node_rank, peers
        self._plan = Plan.model_validate_json(layout.plan.read_text())
        self._spec = self._plan.process(name)
        self._resolved = Resolved.model_validate_json(layout.resolved.read_text())
        self._engines = self._resolved.topology.engines
        self._dataset: Dataset | None = None
        self._locks: dict[str, PortLock] = {}
        self._server: VllmServer | None = None
        self._store: StoreClient | None = None
        self._feeder: Feeder | None = None
        self._state = "starting"
        self._error = ""
        self._stopping = False

    def reserve_ports(self) -> dict[str, int]:
        """Reserve the planned ports on this host. Returns name -> number."""
        self._locks = self._locks or reserve_ports(self._spec.ports)
        return {name: lock.port for name, lock in self._locks.items()}

    def start(self, hosts: Mapping[str, str], ports: Mapping[str, int]) -> dict[str, Any]:
        """Start vLLM and wait for /health. hosts: node -> address; ports: "process.name" -> number.

        Returns {"pid", "url", "ports"}. Raises StartError, StoreError, DataError.
        """
        if self._node_rank == 0:
            self._dataset = Dataset.open(self._resolved.topology.data.path)
        for attempt in range(1, NUM_STARTS + 1):
            try:
                self._start_server(hosts, ports)
                break
            except AddressInUse as error:
                # Nodes of an engine have to agree on their ports: only an engine on one node can choose others alone.
                if attempt == NUM_STARTS or self._engines.nodes_per_engine > 1 or self._stopping:
                    raise
                logger.warning("%s: starting again with other ports: %s", self._name, error.what)
                self._release_ports()
                ports = {**ports, **{f"{self._name}.{key}": port for key, port in self.reserve_ports().items()}}
        if self._node_rank == 0:
            self._connect(hosts, ports)
        else:
            self._state = "ready"  # the probe of its first node is the engine's
        own = {name: lock.port for name, lock in self._locks.items()}
        server = self._server
        return {"pid": server.pid if server else 0, "url": server.base_url if server else "", "ports": own}

    def probe(self, segment: str) -> None:
        """Check one extraction into ``segment``; the engine is ready then. Raises StartError, saying what was wrong."""
        server, store, dataset = self._running()
        key = f"{self._layout.name}/probe/{self._name}/{uuid.uuid4().hex}"
        shape, model = HiddenShape.of(self._resolved), self._resolved.topology.target.model
        timeout_s = self._engines.request_timeout_s
        try:
            probe(server.base_url, model, probe_tokens(dataset), key, segment, shape, store, timeout_s)
        except DSparkError as error:
            raise server.failure(f"the probe extraction of {self._name} is wrong: {error}") from error
        self._state = "ready"

    async def feed(self, life: float | None = None) -> None:
        """Start the feeder; once is enough. life: see `LedgerLine`."""
        if self._node_rank or self._feeder:
            return
        server, store, dataset = self._running()
        limits = Limits(
            max_samples=self._engines.max_in_flight,
            max_tokens=self._engines.max_in_flight_tokens,
            longest_tokens=self._resolved.topology.data.seq_len,
            request_timeout_s=self._engines.request_timeout_s,
        )
        self._feeder = Feeder(
            engine=self._name,
            peers=self._peers,
            store=store,
            dataset=dataset,
            base_url=server.base_url,
            model=self._resolved.topology.target.model,
            shape=HiddenShape.of(self._resolved),
            limits=limits,
            silence_s=FENCE_FACTOR * self._resolved.topology.supervision.silence_s,
            alive=server.alive,
            end_engine=lambda: server.stop(GIVEN_UP_GRACE_S),
            slow_s=Throttle(self._layout.throttle).engine_wait_s,
            life=life,
        )
        self._feeder.start()

    async def status(self) -> dict[str, Any]:
        """What the controller shows and the balance works with.

        {"state": "starting|ready|draining|dead|stopped", "pid": of the API server, "tokens": extracted since the start,
        "busy_s", "blocked_s": seconds with and without anything leased, "in_flight": leases, "num_lost": samples lost
        since the start, "since_success_s": seconds since the last sample arrived, or since the feeder started,
        "load": the fields of `Load` while vLLM tells them, else None, "error"}
        """
        feeder, server = self._feeder, self._server
        busy_s, blocked_s = feeder.times_s() if feeder else (0.0, 0.0)
        state, error = self._judged()
        return {
            "state": state,
            "pid": server.pid if server else os.getpid(),
            "tokens": feeder.tokens if feeder else 0,
            "busy_s": busy_s,
            "blocked_s": blocked_s,
            "in_flight": feeder.in_flight if feeder else 0,
            "num_lost": feeder.num_lost if feeder else 0,
            "since_success_s": feeder.since_success_s if feeder else 0.0,
            "load": asdict(feeder.depth.load) if feeder and feeder.depth.load else None,
            "error": error,
        }

    def _judged(self) -> tuple[str, str]:
        """State and error. Why an engine was given up is told, not that its process was ended for it."""
        if self._stopping:
            return "stopped", ""
        if self._feeder and self._feeder.broken:
            return "dead", self._feeder.broken
        if self._server and self._server.exit_code() is not None:
            self._error = self._error or str(self._server.exited())
            return "dead", self._error
        return self._state, self._feeder.error if self._feeder else ""

    async def drain(self) -> None:
        """Lease no more, and let what is in flight end."""
        self._state = "draining"
        if self._feeder and not await self._feeder.drain():
            logger.warning("%s: not everything in flight ended in time; the ledger leases it to others", self._name)

    async def stop(self, grace_s: float) -> None:
        """End feeder, vLLM's whole process group and the store client, and give the ports back; twice is fine."""
        self._stopping = True
        try:
            if self._feeder:
                await self._feeder.stop()
        finally:
            if self._server:
                await asyncio.to_thread(self._server.stop, grace_s)
            if self._store:
                await asyncio.to_thread(self._store.close)
            self._release_ports()

    def _start_server(self, hosts: Mapping[str, str], ports: Mapping[str, int]) -> None:
        address, log = hosts[self._spec.node], self._layout.log(self._name)
        bound = bind_process(
            self._spec,
            hosts=hosts,
            ports=ports,
            run=self._layout.name,
            log=str(log),
            interface=interface_of(address),
        )
        url = "" if self._node_rank else f"http://{address}:{bound.ports['http']}"
        # Known before it is up, so that a stop in between ends it.
        self._server = VllmServer(bound.argv, bound.env, log, url)
        self._server.start(self._engines.start_timeout_s)

    def _connect(self, hosts: Mapping[str, str], ports: Mapping[str, int]) -> None:
        """Join the store, without a segment: what is ready must outlive the engine."""
        master = self._plan.process("master")
        limit_transfers()
        self._store = connect(
            self._resolved.topology.store,
            owner=self._name,
            host=hosts[self._spec.node],
            master=f"{hosts[master.node]}:{ports['master.rpc']}" if self._resolved.mode == "online" else "",
            segment_bytes=0,
            timeout_s=STORE_TIMEOUT_S,
        )

    def _running(self) -> tuple[VllmServer, StoreClient, Dataset]:
        if not (self._server and self._store and self._dataset):
            raise StartError(f"{self._name} has not been started, or does not answer requests (node {self._node_rank})")
        return self._server, self._store, self._dataset

    def _release_ports(self) -> None:
        for lock in self._locks.values():
            lock.release()
        self._locks = {}


def probe_tokens(dataset: Dataset) -> list[int]:
    """The beginning of a sample that has two tokens that differ. Raises WrongData where there is none."""
    for sample in range(len(dataset)):
        token_ids: list[int] = dataset.token_ids(sample)[:PROBE_TOKENS].tolist()
        if len(set(token_ids)) > 1:
            return token_ids
    raise WrongData("no sample of the data set has two tokens that differ")
