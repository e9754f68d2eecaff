"""The sweep on a real server: the target with its draft, then alone, on the same options; levels of users in turn."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dspark_train.data.conversations import read_conversations
from dspark_train.engine.local_server import HOST, local_server
from dspark_train.errors import DSparkError, UsageError
from dspark_train.evaluate.sweep import Level, Sweep, bench_argv, level_of
from dspark_train.plan.serving import ServingCommand, ServingOptions, serving_command
from dspark_train.topology.pairing import DraftFacts

START_TIMEOUT_S = 900.0
LEVEL_TIMEOUT_S = 3600.0
MIN_PROMPTS = 4
WARM_UP = 1
"""Users of the first measurement, which is thrown away."""
Say = Callable[[str], None]


class BenchError(DSparkError):
    """A measurement of serving did not come to its end."""


@dataclass(frozen=True)
class Ask:
    """What is measured. requests_a_user: how many each of the users sends, one after the other."""

    concurrency: tuple[int, ...]
    max_tokens: int
    requests_a_user: int
    prompts: Path
    num_tokens: int | None = None


def measure(options: ServingOptions, draft: DraftFacts, ask: Ask, logs: Path, say: Say) -> Sweep:
    """Serve and measure both sides. Raises UsageError where this machine cannot, StartError, BenchError.

    logs: directory for the logs of server and benchmark.
    """
    if options.num_nodes > 1:
        raise UsageError(f"the target takes {options.num_nodes} nodes, and bench serving starts servers on one only")
    sides = {}
    with tempfile.TemporaryDirectory() as directory:
        prompts = Path(directory) / "prompts.jsonl"
        write_prompts(ask.prompts, prompts)
        for side, with_draft in (("with", draft), ("without", None)):
            sides[side] = _side(options, with_draft, ask, prompts, logs / f"serving-{side}-draft.log", say)
    made = serving_command(options, draft, host=HOST, port=1, num_tokens=ask.num_tokens)
    return Sweep(
        target=options.target,
        draft=draft.where,
        algorithm=draft.algorithm,
        device=options.device,
        machine=machine(options.device),
        num_speculative_tokens=made.options["speculative_config"]["num_speculative_tokens"],
        max_output_tokens=ask.max_tokens,
        prompts=ask.prompts.name,
        with_draft=sides["with"],
        without_draft=sides["without"],
    )


def write_prompts(source: Path, path: Path) -> int:
    """The first question of every conversation, as `bench serve` reads them. Returns how many. Raises DataError."""
    conversations = read_conversations([source], regenerate=True).conversations
    questions = [next(turn.content for turn in one.messages if turn.role == "user") for one in conversations]
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in questions), encoding="utf-8")
    return len(questions)


def machine(device: str) -> str:
    """In words, for the one who compares figures."""
    if device == "cpu":
        return f"{len(os.sched_getaffinity(0))} CPUs, {platform.machine()}"
    try:
        argv = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        names = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True).stdout.split("\n")
    except (OSError, subprocess.SubprocessError):
        return "GPUs of an unknown kind"
    return f"{len([name for name in names if name])} x {names[0].strip()}"


def _side(
    options: ServingOptions, draft: DraftFacts | None, ask: Ask, prompts: Path, log: Path, say: Say
) -> tuple[Level, ...]:
    num_tokens = ask.num_tokens if draft else None

    def command(port: int) -> ServingCommand:
        return serving_command(options, draft, host=HOST, port=port, num_tokens=num_tokens)

    made = command(port=1)
    if made.caution:
        raise UsageError(made.caution)
    log.parent.mkdir(parents=True, exist_ok=True)
    say(f"starting vLLM {'with the draft' if draft else 'without a draft'} (1-3 minutes on CPU; log: {log})")
    with local_server(lambda port: (command(port).argv(), made.env), log, START_TIMEOUT_S) as server:
        return _levels(made, ask, prompts, server.base_url, log.with_suffix(".bench.log"), say)


def _levels(command: ServingCommand, ask: Ask, prompts: Path, base_url: str, log: Path, say: Say) -> tuple[Level, ...]:
    levels = (WARM_UP, *ask.concurrency)
    argvs = [
        bench_argv(
            base_url=base_url,
            model=str(command.options["served_model_name"]),
            tokenizer=command.target,
            prompts=str(prompts),
            concurrency=users,
            num_prompts=max(MIN_PROMPTS, users * ask.requests_a_user),
            max_tokens=ask.max_tokens,
            trust_remote_code=bool(command.options.get("trust_remote_code")),
        )
        for users in levels
    ]
    results = _bench(argvs, log, len(levels) * LEVEL_TIMEOUT_S)
    found = []
    for users, line in zip(levels, results, strict=True):
        try:
            found.append(level_of(json.loads(line), users))
        except (ValueError, KeyError, TypeError) as error:
            raise BenchError(f"vLLM's bench serve gave no figures for {users} users ({error!r}); log: {log}") from error
        if len(found) > 1:
            say(f"  {users} users: {found[-1].output_tokens_per_s:.1f} tokens/s")
    return tuple(found[1:])


def _bench(argvs: Sequence[Sequence[str]], log: Path, timeout_s: float) -> list[str]:
    """A line of JSON for each list of options. Raises BenchError with the log's last line."""
    with log.open("a", encoding="utf-8") as stream:
        try:
            done = subprocess.run(
                [sys.executable, "-m", "dspark_train.engine.vllm_bench"],
                input=json.dumps(argvs),
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"vLLM's bench serve did not end within {timeout_s:g} s; log: {log}") from error
    lines = done.stdout.splitlines()
    if done.returncode or len(lines) != len(argvs):
        last = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        reason = last[-1] if last else "it said nothing"
        raise BenchError(f"vLLM's bench serve ended with code {done.returncode}: {reason}; log: {log}")
    return lines
