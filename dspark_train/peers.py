"""How one member of a run calls another by name, with a deadline. The seam between members; no transport here.

Names are the run's member names ("ledger", "controller", "rank-0", "engine-1.0"). What travels is small: ids, sizes,
keys, never tensors.
"""

from __future__ import annotations

from typing import Any, Protocol


class Peers(Protocol):
    """Calls to other members of the same run."""

    def call(self, name: str, method: str, *args: Any, timeout_s: float) -> Any:
        """Call ``method`` of the member ``name`` and wait. Raises PeerLost, PeerTimeout, or what the method raised."""
        ...

    async def acall(self, name: str, method: str, *args: Any, timeout_s: float) -> Any:
        """As :meth:`call`, from a coroutine."""
        ...
