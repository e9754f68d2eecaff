"""Waiting for something to change, in one event loop: for long polls."""

from __future__ import annotations

import asyncio


class Bell:
    """Wakes everybody who waits for something to change. Used within one event loop."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        """Wake all who wait now."""
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, timeout_s: float) -> bool:
        """Wait for the next ring; whether it came in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return False
        return True
