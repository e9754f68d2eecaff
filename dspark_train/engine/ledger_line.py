"""An engine's calls to the ledger, under its name and its life: the ledger hears only the newest life of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dspark_train.errors import PeerLost, Replaced
from dspark_train.peers import Peers
from dspark_train.schedule.messages import Lease, Lost, Ready

LEASE_WAIT_S = 5.0
LEASE_TIMEOUT_S = 15.0
REPORT_TIMEOUT_S = 10.0
DROP_TIMEOUT_S = 5.0


class LedgerLine:
    """See the module. All calls raise PeerError where the ledger does not answer, or does not hear this life."""

    def __init__(self, engine: str, life: float | None, peers: Peers) -> None:
        """life: when the controller let this engine lease; None where nobody else can have its name."""
        self._engine, self._life, self._peers = engine, life, peers
        self.replaced = ""
        """Why this life is not heard any more, "" while it is."""

    async def lease(self, num_samples: int, num_tokens: int) -> Sequence[Lease]:
        """Ask for samples; waits `LEASE_WAIT_S` for the first."""
        leases: Sequence[Lease] = await self._ask(
            "lease", num_samples, num_tokens, LEASE_WAIT_S, timeout_s=LEASE_TIMEOUT_S
        )
        return leases

    async def report(self, ready: Sequence[Ready], lost: Sequence[Lost]) -> Sequence[str]:
        """Tell what became of leases. Returns keys that are to be removed from the store."""
        unwanted: Sequence[str] = await self._ask("report", list(ready), list(lost), timeout_s=REPORT_TIMEOUT_S)
        return unwanted

    async def drop(self) -> None:
        """Give every lease back."""
        await self._ask("drop_engine", False, timeout_s=DROP_TIMEOUT_S)

    async def _ask(self, method: str, *args: object, timeout_s: float) -> Any:
        try:
            return await self._peers.acall("ledger", method, self._engine, *args, self._life, timeout_s=timeout_s)
        except Replaced as error:
            self.replaced = str(error)
            raise PeerLost(self.replaced) from error
