"""Conversations into the training set, through speculators' own preprocessing: its chat template rendering, loss mask
and lengths. Whole or not at all: everything is made in a directory beside, which then takes the data set's name.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from dspark_train.data.conversation import Conversation
from dspark_train.data.dataset import ROWS, TOKEN_FREQ, DatasetInfo, write_index
from dspark_train.errors import DSparkError, UsageError

COLUMNS = ["input_ids", "loss_mask", "seq_len"]
CONVERSATIONS, LOG = "conversations.jsonl", "prepare.log"
MIN_FOR_WORKERS = 1000
"""With fewer conversations, starting worker processes takes longer than rendering."""
RENDER_TIMEOUT_S = 60.0
PREPROCESSING_LOGGER = "speculators.data_generation"

_FAILED = re.compile(r"Failed to process conversation \d+: (.*)")
_UNTRAINED = re.compile(r"Dropped (\d+) rows with no supervised tokens")
_CUT = re.compile(r"(\d+) rows may have been truncated")
_EMPTY_ERROR = "No samples remain"


class PreparationFailed(DSparkError):
    """No conversation became a sample, or the server does not render."""


@dataclass(frozen=True)
class Options:
    """What decides, beside the conversations, what the data set is. min_trained_tokens: of a sample, else dropped."""

    model: str
    seq_len: int
    seed: int
    min_trained_tokens: int = 1
    trust_remote_code: bool = False


@dataclass
class Prepared:
    """What was made. dropped: reason -> how many answers. num_cut: samples that reach ``seq_len``."""

    info: DatasetInfo
    dropped: dict[str, int] = field(default_factory=dict)
    num_cut: int = 0


def work_directory(out: Path) -> Path:
    """Where a data set is made: beside it, so that it becomes ``out`` by a rename. Survives a failure."""
    return out.with_name(f".{out.name}.partial")


def check_renders(endpoint: str, model: str) -> None:
    """See that the server renders chats. Raises PreparationFailed saying what it lacks."""
    url = f"{endpoint}/v1/chat/completions/render"
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}]}
    try:
        reply = httpx.post(url, json=body, timeout=RENDER_TIMEOUT_S, trust_env=False)
    except httpx.TransportError as error:
        raise PreparationFailed(f"no server answers at {endpoint} ({type(error).__name__}): start it first") from error
    if reply.status_code in (httpx.codes.FORBIDDEN, httpx.codes.NOT_FOUND):
        raise PreparationFailed(
            f"the server at {endpoint} does not render chats (HTTP {reply.status_code}): start it with "
            "--enable-scale-out, or as `vllm launch render`"
        )
    if not reply.is_success:
        raise PreparationFailed(f"the server at {endpoint} cannot render: HTTP {reply.status_code}: {reply.text[:300]}")


def prepare_dataset(
    conversations: Sequence[Conversation],
    options: Options,
    out: Path,
    *,
    render_endpoint: str,
    inputs: str = "",
    described: Mapping[str, Any] | None = None,
    num_workers: int | None = None,
) -> Prepared:
    """Make the directory ``out``, replacing the data set that is there.

    render_endpoint: base URL of a server that renders the target's chat template. inputs, described: kept in
    ``dataset.json`` (see `inputs.py`). num_workers: processes that render; off: speculators' own choice.
    Raises PreparationFailed, and UsageError where ``out`` is something else than a data set.
    """
    if not conversations:
        raise PreparationFailed("no conversation has an answer, so there is nothing to train on")
    check_out(out)
    check_renders(render_endpoint, options.model)
    work = work_directory(out)
    work.mkdir(parents=True, exist_ok=True)
    write_conversations(conversations, work / CONVERSATIONS)
    if num_workers is None and len(conversations) < MIN_FOR_WORKERS:
        num_workers = 0  # in this process
    _preprocess(work, options, render_endpoint, num_workers, len(conversations))
    info = write_index(
        work, target=options.model, seq_len=options.seq_len, inputs=inputs, options=dict(described or {})
    )
    _publish(work, out)
    dropped, num_cut = _counts((out / LOG).read_text(encoding="utf-8"))
    num_unexplained = num_answers(conversations) - info.num_samples - sum(dropped.values())
    if num_unexplained > 0:
        dropped[f"fewer than {options.min_trained_tokens} trained tokens within seq_len"] = num_unexplained
    return Prepared(info, dropped, num_cut)


def num_answers(conversations: Sequence[Conversation]) -> int:
    """Assistant turns after another turn: each becomes one sample, with all turns before it as its context."""
    return sum(message.role == "assistant" for c in conversations for message in c.messages[1:])


def write_conversations(conversations: Sequence[Conversation], file: Path) -> None:
    """Write the normal form as JSON lines, in the shape that speculators reads. Every turn has the same keys."""
    reasons = any(message.reasoning for conversation in conversations for message in conversation.messages)
    with file.open("w", encoding="utf-8") as handle:
        for conversation in conversations:
            turns = [
                {"role": m.role, "content": m.content} | ({"reasoning_content": m.reasoning} if reasons else {})
                for m in conversation.messages
            ]
            line = {"id": conversation.id, "domain": conversation.domain, "conversations": turns}
            handle.write(json.dumps(line) + "\n")


def check_out(out: Path) -> None:
    """See that ``out`` may be written: missing, empty, or a data set. Raises UsageError."""
    if out.is_dir() and any(out.iterdir()) and not (out / ROWS).is_dir():
        raise UsageError(f"{out} holds something else than a data set: name another directory in data.path or --out")
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file: name a directory in data.path or --out")


def _preprocess(
    work: Path, options: Options, render_endpoint: str, num_workers: int | None, num_conversations: int
) -> None:
    """Fill ``work`` with rows and token frequencies; its log holds all that speculators says."""
    for name in (ROWS, TOKEN_FREQ, LOG):
        _remove(work / name)
    if Path(options.model).is_dir():
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import datasets
    from speculators.data_generation.preprocessing import default_preprocessing_workers, load_and_preprocess_dataset

    workers = default_preprocessing_workers() if num_workers is None else num_workers
    with _cache(datasets, work / "cache"), _logging_to(work / LOG):
        try:
            rows, _ = load_and_preprocess_dataset(
                options.model,
                [str(work / CONVERSATIONS)],
                seq_length=options.seq_len,
                build_dataset_num_proc=workers,
                seed=options.seed,
                token_freq_path=work / TOKEN_FREQ,
                render_endpoint=render_endpoint,
                minimum_valid_tokens=options.min_trained_tokens,
                trust_remote_code=options.trust_remote_code,
                skip_token_freq=False,
            )
        except ValueError as error:
            if not str(error).startswith(_EMPTY_ERROR):
                raise
            raise _nothing_left(work / LOG, num_conversations) from error
        rows.select_columns(COLUMNS).save_to_disk(work / ROWS)


def _nothing_left(log: Path, num_conversations: int) -> PreparationFailed:
    dropped, _ = _counts(log.read_text(encoding="utf-8"))
    reasons = (
        "; ".join(f"{reason} ({count})" for reason, count in dropped.items()) or "no answer has enough trained tokens"
    )
    return PreparationFailed(f"none of {num_conversations} conversations became a sample: {reasons}; log: {log}")


def _counts(log: str) -> tuple[dict[str, int], int]:
    """(reason -> conversations dropped, rows cut) out of what speculators logged."""
    dropped = Counter(match[:200] for match in _FAILED.findall(log))
    untrained = sum(map(int, _UNTRAINED.findall(log)))
    if untrained:
        dropped["the answer lies beyond seq_len"] = untrained
    return dict(dropped.most_common()), sum(map(int, _CUT.findall(log)))


@contextlib.contextmanager
def _cache(datasets: Any, directory: Path) -> Iterator[None]:
    """Keep the cache of `datasets` in ``directory`` and its progress bars quiet; remove it at the end."""
    before = datasets.config.HF_DATASETS_CACHE
    quiet = datasets.are_progress_bars_disabled()
    datasets.config.HF_DATASETS_CACHE = directory
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.config.HF_DATASETS_CACHE = before
        if not quiet:
            datasets.enable_progress_bars()
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _logging_to(file: Path) -> Iterator[None]:
    """Send what speculators logs and prints to ``file``: also from worker processes, which inherit the handler."""
    logger = logging.getLogger(PREPROCESSING_LOGGER)
    before = (logger.level, logger.propagate)
    with file.open("a", encoding="utf-8") as stream:
        handler = logging.StreamHandler(stream)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        try:
            with contextlib.redirect_stderr(stream), contextlib.redirect_stdout(stream):
                yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(before[0])
            logger.propagate = before[1]


def _publish(work: Path, out: Path) -> None:
    """Give ``work`` the name ``out``; what had it goes only after that."""
    old = out.with_name(f".{out.name}.old")
    _remove(old)
    if out.exists():
        out.rename(old)
    work.rename(out)
    _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
