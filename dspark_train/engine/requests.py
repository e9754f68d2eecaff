"""One engine's HTTP side: has samples extracted, and tries an engine that has failed. Reports nothing itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import httpx
import numpy as np
import numpy.typing as npt

from dspark_train.engine.extract import EngineRefused, HiddenShape, read_answer, request_body
from dspark_train.engine.in_flight import Flight

TRIAL_TOKENS = [1, 2]
"""Any target has these; nothing is put."""


class TokenIds(Protocol):
    """The data set, as far as a feeder reads it."""

    def token_ids(self, sample: int) -> npt.NDArray[np.int64]: ...


class Requests:
    """Posts to one engine; closed by its owner."""

    def __init__(
        self,
        *,
        base_url: str,
        model: str,
        shape: HiddenShape,
        dataset: TokenIds,
        max_samples: int,
        transport: httpx.AsyncBaseTransport | None,
        clock: Callable[[], float],
    ) -> None:
        """max_samples: at once. transport: of HTTP, where not the network is to be used."""
        self._model, self._shape, self._dataset, self._clock = model, shape, dataset, clock
        self._url, self._metrics_url = f"{base_url}/v1/completions", f"{base_url}/metrics"
        # The deadline is one over the whole request; httpx's own are for each of its phases.
        pool = httpx.Limits(max_connections=max_samples + 1)
        self._http = httpx.AsyncClient(timeout=None, limits=pool, trust_env=False, transport=transport)

    async def extract(self, flight: Flight) -> int:
        """Have one sample extracted; returns the bytes of its object, which may be put later.

        Raises TimeoutError at the flight's deadline, EngineRefused, RequestRejected, WrongData, DataError.
        """
        lease = flight.lease
        async with asyncio.timeout(flight.deadline_s - self._clock()):
            token_ids = self._dataset.token_ids(lease.sample)[: lease.num_tokens].tolist()
            answer = await self._post(request_body(self._model, token_ids, lease.key, lease.segment))
            return read_answer(answer, token_ids, lease.key, self._shape)

    async def try_out(self, timeout_s: float) -> None:
        """Have two tokens run through the engine. Raises TimeoutError, EngineRefused."""
        body = {"model": self._model, "prompt": TRIAL_TOKENS, "max_tokens": 1}
        async with asyncio.timeout(timeout_s):
            answer = await self._post(body)
        if answer.status_code != httpx.codes.OK:
            raise EngineRefused(f"the engine answered {answer.status_code} to two tokens")

    async def metrics(self, timeout_s: float) -> str:
        """What the engine says of itself on /metrics; "" where it has no such page. Raises TimeoutError, EngineRefused.

        Over a connection beside those of the samples, which may all be in use.
        """
        async with asyncio.timeout(timeout_s):
            try:
                answer = await self._http.get(self._metrics_url)
            except httpx.HTTPError as error:
                raise EngineRefused(f"no answer: {type(error).__name__} {error}") from error
        return answer.text if answer.status_code == httpx.codes.OK else ""

    async def close(self) -> None:
        """Close every connection."""
        await self._http.aclose()

    async def _post(self, body: dict[str, object]) -> httpx.Response:
        try:
            return await self._http.post(self._url, json=body)
        except httpx.HTTPError as error:
            raise EngineRefused(f"no answer: {type(error).__name__} {error}") from error
