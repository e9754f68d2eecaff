"""How fast a target serves with its draft and without, by the number of users at once. Pure: figures in, figures out.

The figures are those of vLLM's own `bench serve`. Interactivity, the tokens a second of one user, is the inverse of the
median time between two tokens; throughput is that of all users together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

CONCURRENCY = (1, 2, 4, 8, 16)
TTFT_PERCENTILE = 95


class Level(BaseModel):
    """What was measured with so many requests in flight. accept_len: tokens a pass of the target, None without one."""

    model_config = ConfigDict(frozen=True)

    concurrency: int
    num_completed: int
    num_failed: int
    duration_s: float
    output_tokens: int
    output_tokens_per_s: float
    user_tokens_per_s: float | None
    ttft_median_s: float
    ttft_p95_s: float
    accept_len: float | None = None


class Sweep(BaseModel):
    """Both sides, level by level. draft: what it was; machine: where it was measured."""

    model_config = ConfigDict(frozen=True)

    target: str
    draft: str
    algorithm: str
    device: Literal["cpu", "cuda"]
    machine: str
    num_speculative_tokens: int
    max_output_tokens: int
    prompts: str
    with_draft: tuple[Level, ...]
    without_draft: tuple[Level, ...]

    def speedups(self) -> dict[int, float]:
        """Concurrency -> throughput with the draft over that without, where both were measured."""
        alone = {level.concurrency: level.output_tokens_per_s for level in self.without_draft}
        return {
            level.concurrency: level.output_tokens_per_s / alone[level.concurrency]
            for level in self.with_draft
            if alone.get(level.concurrency)
        }


def level_of(result: Mapping[str, Any], concurrency: int) -> Level:
    """One result of `bench serve`, whose times are in milliseconds. Raises KeyError where it is none."""
    between_ms = result["median_tpot_ms"]
    return Level(
        concurrency=concurrency,
        num_completed=result["completed"],
        num_failed=result["failed"],
        duration_s=result["duration"],
        output_tokens=result["total_output_tokens"],
        output_tokens_per_s=result["output_throughput"],
        user_tokens_per_s=1000 / between_ms if between_ms else None,
        ttft_median_s=result["median_ttft_ms"] / 1000,
        ttft_p95_s=result[f"p{TTFT_PERCENTILE}_ttft_ms"] / 1000,
        accept_len=result.get("spec_decode_acceptance_length"),
    )


def bench_argv(
    *,
    base_url: str,
    model: str,
    tokenizer: str,
    prompts: str,
    concurrency: int,
    num_prompts: int,
    max_tokens: int,
    trust_remote_code: bool = False,
) -> list[str]:
    """Options of `vllm bench serve` for one level: greedy, so that both sides write the same text."""
    return [
        *("--backend", "openai", "--endpoint", "/v1/completions", "--base-url", base_url),
        *("--model", model, "--served-model-name", model, "--tokenizer", tokenizer),
        *("--dataset-name", "custom", "--dataset-path", prompts, "--custom-output-len", str(max_tokens)),
        *("--num-prompts", str(num_prompts), "--max-concurrency", str(concurrency), "--request-rate", "inf"),
        *("--percentile-metrics", "ttft,tpot", "--metric-percentiles", str(TTFT_PERCENTILE)),
        *("--temperature", "0", "--disable-tqdm", "--seed", "0"),
        *(["--trust-remote-code"] if trust_remote_code else []),
    ]


def table(sweep: Sweep) -> list[str]:
    """The sweep in lines of at most 80 columns."""
    lines = ["users   draft   tokens/s   a user   first token (p95)   accepted   speed-up"]
    speedups = sweep.speedups()
    by_users: dict[int, list[tuple[str, Level]]] = {}
    for word, levels in (("with", sweep.with_draft), ("without", sweep.without_draft)):
        for level in levels:
            by_users.setdefault(level.concurrency, []).append((word, level))
    for users in sorted(by_users):
        for word, level in by_users[users]:
            speedup = f"{speedups[users]:.2f}x" if word == "with" and users in speedups else ""
            lines.append(_row(users, word, level, speedup))
    return lines


def problems(levels: Sequence[Level]) -> list[str]:
    """What makes the figures doubtful."""
    return [
        f"with {level.concurrency} users {level.num_failed} of {level.num_failed + level.num_completed} requests failed"
        for level in levels
        if level.num_failed
    ]


def _row(users: int, word: str, level: Level, speedup: str) -> str:
    user = f"{level.user_tokens_per_s:.1f}" if level.user_tokens_per_s else "-"
    first = f"{level.ttft_median_s:.2f} s ({level.ttft_p95_s:.2f})"
    accepted = f"{level.accept_len:.2f}" if level.accept_len else "-"
    return (
        f"{users:>5}   {word:<7} {level.output_tokens_per_s:>8.1f} {user:>8}   {first:>17} {accepted:>10} {speedup:>10}"
    ).rstrip()
