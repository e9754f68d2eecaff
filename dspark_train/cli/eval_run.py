"""The work of `eval`: prompts, the reference and the server in turn, and the figures of all of it."""

from __future__ import annotations

import contextlib
import io
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

from dspark_train.cli.eval import Asked, Method
from dspark_train.cli.eval_subject import Subject, find_subject
from dspark_train.cli.prepare_view import Narrator
from dspark_train.data.target import read_target_facts
from dspark_train.errors import DSparkError, UsageError
from dspark_train.evaluate.outcome import disagreement, last_validation, suspicion
from dspark_train.evaluate.prompts import OWN_PROMPTS, Encode, Prompt, encode_prompts, in_contexts, read_prompts

DEFAULT_MAX_POSITIONS = 4096
"""Of a target whose files do not say how long its texts may be."""


def evaluate(what: str | None, asked: Asked) -> dict[str, Any]:
    """All figures, as `eval --json` prints them; those of a run are also kept in RUN/eval/."""
    from loguru import logger

    logger.disable("speculators")  # it tells every file it opens; what fails is raised
    narrator = Narrator()
    started_s = time.monotonic()
    with narrator.step("load", "loading the draft", "usually about 15 s"), quiet():
        trust = asked.trust_remote_code
        subject = find_subject(what, asked.target, asked.step, trust_remote_code=trust, other_target=asked.other_target)
    if asked.calibrate and subject.run is not None:
        raise UsageError(
            f"--calibrate writes into an export, and {subject.run.name} is a run: `dspark-train export` it, then give "
            "eval that directory"
        )
    prompts = _prompts(subject, asked)
    found: dict[str, Any] = {"method": str(asked.method)}
    measured = dict(_measured(subject, prompts, asked, narrator))
    found = {**measured[Method.served if asked.method is Method.served else Method.reference], **_about(subject, asked)}
    if asked.method is Method.both:
        found["served"] = measured[Method.served]
        found["disagreement_frac"] = disagreement(found["accept_len"], found["served"]["accept_len"])
    found["warnings"] = _warnings(subject, found)
    found["seconds"] = time.monotonic() - started_s
    for text in found["warnings"]:
        narrator.say(f"warning: {text}", "yellow")
    if subject.run is not None:
        path = subject.run.evaluations / f"{asked.method}.json"
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def _measured(
    subject: Subject, prompts: Sequence[Prompt], asked: Asked, narrator: Narrator
) -> Iterator[tuple[Method, dict[str, Any]]]:
    if asked.method is not Method.served:
        from dspark_train.cli.eval_reference import measure

        yield Method.reference, measure(subject, prompts, asked, narrator)
    if asked.method is not Method.reference:
        from dspark_train.cli.eval_served import measure as measure_served

        yield Method.served, measure_served(subject, prompts, asked, narrator)


def _prompts(subject: Subject, asked: Asked) -> tuple[Prompt, ...]:
    """Raises UsageError where none is left."""
    conversations = read_prompts(asked.data or (OWN_PROMPTS,), asked.num_per_domain)
    encode = _encoder(subject)
    positions = read_target_facts(subject.target).max_position_embeddings or DEFAULT_MAX_POSITIONS
    most = positions - asked.max_tokens - (asked.num_tokens or subject.num_tokens) - 1
    prompts = list(encode_prompts(conversations, encode, most))
    for context_tokens in asked.contexts_tokens:
        prompts += in_contexts(conversations, encode, context_tokens, most)
    if not prompts:
        raise UsageError(f"no prompt fits the target's {positions} positions beside an answer: lower --max-tokens")
    return tuple(prompts)


def _encoder(subject: Subject) -> Encode:
    from dspark_train.evaluate.target import load_tokenizer

    with quiet():
        tokenizer = load_tokenizer(subject.target, trust_remote_code=subject.trust_remote_code)

    def encode(messages: Any) -> list[int]:
        turns = [message.as_json() for message in messages]
        ids = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=True, return_dict=False)
        return [int(token) for token in ids]

    return encode


def _about(subject: Subject, asked: Asked) -> dict[str, Any]:
    return {
        "run": subject.run.name if subject.run else None,
        "draft": str(subject.draft),
        "step": subject.step,
        "algorithm": subject.algorithm,
        "target": subject.target,
        "num_drafted": asked.num_tokens or subject.num_tokens,
        "max_tokens": asked.max_tokens,
        "seed": asked.seed,
        "data": [str(path) for path in asked.data] or ["(our own)"],
    }


def _warnings(subject: Subject, found: dict[str, Any]) -> list[str]:
    warnings = []
    if subject.run is not None and subject.run.validation.is_file():
        lines = [json.loads(line) for line in subject.run.validation.read_text(encoding="utf-8").splitlines()]
        until = [line for line in lines if subject.step is None or line.get("step", 0) <= subject.step]
        if text := suspicion(last_validation(until), found["accept_len"]):
            warnings.append(text)
    lossless = found.get("lossless")
    if lossless and lossless["num_differing"]:
        warnings.append(
            f"{lossless['num_differing']} of {lossless['num_tokens']} greedy tokens are not the target's first choice "
            f"(by up to {lossless['max_gap']:.2g} in logits): rounding, where that is below 0.001 in float32"
        )
    return warnings


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep what libraries print while they load; show it where that fails for a reason of ours to find."""
    kept = io.StringIO()
    try:
        with contextlib.redirect_stdout(kept), contextlib.redirect_stderr(kept):
            yield
    except DSparkError:
        raise
    except BaseException:
        import sys

        sys.stderr.write(kept.getvalue())
        raise
