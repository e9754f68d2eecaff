"""`eval --method served`: a vLLM server with the draft, ours or one that runs, and what its counters gain."""

from __future__ import annotations

import contextlib
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from dspark_train.cli.eval import Asked
from dspark_train.cli.eval_subject import Subject
from dspark_train.cli.prepare_view import Narrator
from dspark_train.cli.served import carried_options
from dspark_train.data.draft import read_draft_facts
from dspark_train.data.serving import served_model
from dspark_train.data.target import read_target_facts
from dspark_train.engine.local_server import HOST, Command, local_server
from dspark_train.errors import UsageError
from dspark_train.evaluate.acceptance import Acceptance, bucket_of, total
from dspark_train.evaluate.outcome import LENGTH_EDGES_TOKENS, figures
from dspark_train.evaluate.prompts import Prompt
from dspark_train.evaluate.served import Requests, ask
from dspark_train.plan.serving import ServingCommand, ServingOptions, counting_command

START_TIMEOUT_S = 900.0
Group = tuple[str, int, str]
"""Domain, context in tokens, and bucket: prompts whose drafts are counted together."""


def measure(subject: Subject, prompts: Sequence[Prompt], asked: Asked, narrator: Narrator) -> dict[str, Any]:
    """Figures of the first temperature at the top, all of them in ``by_temperature``. Raises UsageError, StartError."""
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


@contextlib.contextmanager
def _endpoint(
    subject: Subject, prompts: Sequence[Prompt], asked: Asked, narrator: Narrator
) -> Iterator[tuple[str, str]]:
    """Address and model name of the server that was named, or of one that ends with the block."""
    if asked.endpoint:
        yield asked.endpoint, served_model(asked.endpoint)
        return
    options = _options(subject)
    if options.num_nodes > 1:
        raise UsageError(f"the target takes {options.num_nodes} nodes: start `dspark-train serve` and give --endpoint")

    def command(port: int) -> Command:
        made = _command(options, subject, prompts, asked, port)
        threads = {"OMP_NUM_THREADS": str(asked.threads)} if made.device == "cpu" else {}
        return made.argv(), made.env | threads

    made = _command(options, subject, prompts, asked, port=1)
    if made.caution:
        raise UsageError(f"{made.caution}; or use --method reference here, or --endpoint of a server on GPUs")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dspark-train-eval-")))
        log = subject.run.log("eval-vllm") if subject.run else folder / "vllm.log"
        with narrator.step("server", "starting vLLM with the draft", f"usually 30-60 s on CPU; log: {log}"):
            server = stack.enter_context(local_server(command, log, START_TIMEOUT_S))
        yield server.base_url, str(made.options["served_model_name"])


def _options(subject: Subject) -> ServingOptions:
    """Those that the target was extracted with, where the draft carries them, on the device that is here."""
    import torch

    device: Literal["cpu", "cuda"] = "cuda" if torch.cuda.is_available() else "cpu"
    carried = carried_options(subject.draft, subject.run)
    options = carried or ServingOptions(target=subject.target, device=device, dtype="auto")
    path = read_target_facts(subject.target).path
    trust = subject.trust_remote_code or options.trust_remote_code
    return options.model_copy(
        update={"target": subject.target, "path": path, "device": device, "trust_remote_code": trust}
    )


def _command(
    options: ServingOptions, subject: Subject, prompts: Sequence[Prompt], asked: Asked, port: int
) -> ServingCommand:
    draft = read_draft_facts(str(subject.draft))
    assert draft is not None
    num_tokens = asked.num_tokens or subject.num_tokens
    return counting_command(
        options,
        draft,
        host=HOST,
        port=port,
        num_tokens=num_tokens,
        max_model_len=max(len(prompt.ids) for prompt in prompts) + asked.max_tokens + num_tokens + 1,
        draft_samples=asked.draft_samples,
    )
