"""A wake-up call for one waiting task; one that comes while nobody waits is kept for the next wait."""

from __future__ import annotations

import asyncio


class Wake:
    """Set from anywhere in the event loop, waited for by one task."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self, timeout_s: float) -> bool:
        """Whether the call came within ``timeout_s``; it is used up then."""
        came = await set_within(self._event, timeout_s)
        if came:
            self._event.clear()
        return came


async def set_within(event: asyncio.Event, timeout_s: float) -> bool:
    """Whether ``event`` is set within ``timeout_s``."""
    try:
        async with asyncio.timeout(timeout_s):  # wait_for of 3.11 can swallow a cancellation
            await event.wait()
    except TimeoutError:
        return False
    return True
