"""What vLLM loads into each of its processes, by the entry point `vllm.general_plugins`: on CPU, waits that sleep.

While its worker computes, vLLM's engine core looks for the answer in a loop around ``sched_yield``. On a machine whose
cores also train, that loop takes time from the ranks. A sleep of half a millisecond instead costs nothing where one
forward pass takes a hundred.
"""

from __future__ import annotations

import os
import time

PAUSE_VARIABLE = "DSPARK_VLLM_PAUSE_S"
"""Seconds to sleep where vLLM would yield; not set, nothing is changed."""


def register() -> None:
    """Called by vLLM at the start of every process."""
    pause_s = float(os.environ.get(PAUSE_VARIABLE) or 0.0)
    if pause_s > 0:
        from vllm.distributed.device_communicators import shm_broadcast

        shm_broadcast.sched_yield = lambda: time.sleep(pause_s)
