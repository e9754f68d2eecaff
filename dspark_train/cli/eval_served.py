"""`eval --method served`: a vLLM server with the draft, ours or one that runs, and what its counters gain."""

from __future__ import annotations

import contextlib
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dspark_train.cli.eval import Asked
from dspark_train.cli.eval_subject import Subject
from dspark_train.cli.prepare_view import Narrator
from dspark_train.data.serving import served_model
from dspark_train.engine.server import VllmServer
from dspark_train.errors import UsageError
from dspark_train.evaluate.acceptance import Acceptance, bucket_of, total
from dspark_train.evaluate.outcome import LENGTH_EDGES_TOKENS, figures
from dspark_train.evaluate.prompts import Prompt
from dspark_train.evaluate.served import Requests, ask
from dspark_train.evaluate.serving_command import HOST, NOT_ON_CPU, SERVED_NAME, Serving, serving_argv, serving_env
from dspark_train.store.ports import AddressInUse, reserve_port

NUM_PORT_ATTEMPTS = 3
START_TIMEOUT_S = 900.0
STOP_GRACE_S = 10.0
Group = tuple[str, int, str]
"""Domain, context in tokens, and bucket: prompts whose drafts are counted together."""


def measure(subject: Subject, prompts: Sequence[Prompt], asked: Asked, narrator: Narrator) -> dict[str, Any]:
    """Figures of the first temperature at the top, all of them in ``by_temperature``. Raises UsageError, StartError."""
    if not asked.endpoint:
        _refuse(subject)
    with _endpoint(subject, prompts, asked, narrator) as (url, model):
        results = {}
        for temperature in asked.temperatures:
            requests = Requests(url, model, temperature, asked.max_tokens, asked.seed, asked.batch_size)
            results[temperature] = _at(requests, prompts, narrator)
    found = {"method": "served", "temperature": asked.temperatures[0], **results[asked.temperatures[0]]}
    if len(results) > 1:
        found["by_temperature"] = {f"{key:g}": value for key, value in results.items()}
    return found


def _at(requests: Requests, prompts: Sequence[Prompt], narrator: Narrator) -> dict[str, Any]:
    groups: dict[Group, list[Prompt]] = defaultdict(list)
    for prompt in prompts:
        bucket = bucket_of(len(prompt.ids), LENGTH_EDGES_TOKENS)
        groups[prompt.domain, prompt.context_tokens, bucket].append(prompt)
    domains: dict[str, Acceptance] = {}
    lengths: dict[str, Acceptance] = {}
    with narrator.bar(f"ask-{requests.temperature:g}", "asking the server", len(prompts)) as bar:
        for num_done, (key, group) in enumerate(sorted(groups.items(), key=lambda each: len(each[1][0].ids))):
            part = ask(requests, group).acceptance
            domain, context_tokens, bucket = key
            if not context_tokens:
                domains[domain] = domains.get(domain, Acceptance()) + part
            lengths[bucket] = lengths.get(bucket, Acceptance()) + part
            bar.update(total(lengths.values()).num_prompts, f"group {num_done + 1} of {len(groups)}")
    order = dict.fromkeys(prompt.domain for prompt in prompts)
    return figures({domain: domains[domain] for domain in order if domain in domains}, lengths)


def _refuse(subject: Subject) -> None:
    import torch

    if not torch.cuda.is_available() and (reason := NOT_ON_CPU.get(subject.algorithm)):
        raise UsageError(f"{reason}: use --method reference here, or --endpoint of a server on GPUs")


@contextlib.contextmanager
def _endpoint(
    subject: Subject, prompts: Sequence[Prompt], asked: Asked, narrator: Narrator
) -> Iterator[tuple[str, str]]:
    """Address and model name of the server that was named, or of one that ends with the block."""
    if asked.endpoint:
        yield asked.endpoint, served_model(asked.endpoint)
        return
    import torch

    num_tokens = asked.num_tokens or subject.num_tokens
    serving = Serving(
        target=subject.target,
        draft=str(subject.draft),
        algorithm=subject.algorithm,
        num_tokens=num_tokens,
        max_model_len=max(len(prompt.ids) for prompt in prompts) + asked.max_tokens + num_tokens + 1,
        on_cpu=not torch.cuda.is_available(),
        trust_remote_code=subject.trust_remote_code,
        draft_samples=asked.draft_samples,
    )
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dspark-train-eval-")))
        log = subject.run.log("eval-vllm") if subject.run else folder / "vllm.log"
        with narrator.step("server", "starting vLLM with the draft", f"usually 30-60 s on CPU; log: {log}"):
            server = _start(serving, log, asked.threads, stack)
        yield server.base_url, SERVED_NAME


def _start(serving: Serving, log: Path, threads: int, stack: contextlib.ExitStack) -> VllmServer:
    """Start on a reserved port, on another one where somebody else took it. Raises StartError."""
    for attempt in range(1, NUM_PORT_ATTEMPTS + 1):
        lock = reserve_port()
        stack.callback(lock.release)
        server = VllmServer(
            serving_argv(serving, lock.port), serving_env(serving, threads), log, f"http://{HOST}:{lock.port}"
        )
        stack.callback(server.stop, STOP_GRACE_S)
        try:
            server.start(START_TIMEOUT_S)
        except AddressInUse:
            if attempt == NUM_PORT_ATTEMPTS:
                raise
        else:
            break
    return server
