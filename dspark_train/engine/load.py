"""What vLLM's own /metrics say of an engine's load, for those who watch the run. Pure; nothing is decided by it."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAMES = (
    "num_requests_running",
    "num_requests_waiting",
    "request_success_total",
    "prompt_tokens_total",
    "kv_cache_usage_perc",
)
_METRIC = re.compile(rf"^vllm:({'|'.join(_NAMES)})(?:\{{[^}}]*\}})? +([0-9.eE+-]+) *$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Load:
    """Over all cores of an engine. running: mostly 0, since an extraction ends within one iteration of the scheduler.

    finished, prompt_tokens: since its start. kv_cache_frac: of the core whose cache is fullest.
    """

    running: int
    waiting: int
    finished: int
    prompt_tokens: int
    kv_cache_frac: float


def parse_load(text: str) -> Load | None:
    """Read vLLM's /metrics; None where it does not say all of it."""
    found: dict[str, list[float]] = {}
    for name, value in _METRIC.findall(text):
        found.setdefault(name, []).append(float(value))
    if len(found) < len(_NAMES):
        return None
    running, waiting, finished, prompt_tokens = (round(sum(found[name])) for name in _NAMES[:4])
    return Load(running, waiting, finished, prompt_tokens, max(found["kv_cache_usage_perc"]))
