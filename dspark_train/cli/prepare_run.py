"""The work of `prepare`, after all checks: unpack the target, serve it, have it write, preprocess, stop the server."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from dspark_train.cli.prepare_view import Narrator, Outcome, percentiles
from dspark_train.data.conversations import Reading, check_share
from dspark_train.data.dataset import Dataset
from dspark_train.data.inputs import Inputs, inputs_of
from dspark_train.data.prepare import Options, Prepared, check_renders, prepare_dataset, work_directory
from dspark_train.data.quickstart_target import unpack
from dspark_train.data.regenerate import Regenerated, Sampling, Server, regenerate
from dspark_train.data.serving import cpu_flags, served_model, server_command
from dspark_train.data.target import read_target_facts
from dspark_train.engine.local_server import Command, local_server
from dspark_train.engine.server import VllmServer
from dspark_train.errors import UsageError
from dspark_train.topology.resolve import Resolved, resolve

ALIVE_POLL_S = 0.5
WATCH_END_TIMEOUT_S = 5.0
INTERRUPT = signal.SIGUSR1
"""Not SIGINT: what a script starts in the background ignores that."""
ANSWERS, SERVER_LOG = "answers.jsonl", "vllm.log"


@dataclass(frozen=True)
class Job:
    """Everything that was asked for, and checked. sampling: None where the answers are those of the files."""

    resolved: Resolved
    reading: Reading
    out: Path
    options: Options
    sampling: Sampling | None
    unpack: bool
    endpoint: str
    concurrency: int
    threads: int
    max_bad_frac: float

    @cached_property
    def inputs(self) -> Inputs:
        return inputs_of(self.reading.conversations, self.options, self.sampling)


@dataclass(frozen=True)
class Endpoint:
    """A server that is up. server: ours, None where it was there before."""

    url: str
    model: str
    server: VllmServer | None


def run(job: Job, narrator: Narrator) -> Outcome:
    """Make the data set. What the target has written survives a failure and is used by the next attempt."""
    work = work_directory(job.out)
    with exclusively(job.out), contextlib.ExitStack() as stack:
        resolved = job.resolved
        if job.unpack:
            model = Path(job.options.model).expanduser()
            with narrator.step("unpack", f"unpacking the target into {model}", "about 20 s"):
                unpack(model)
            resolved = resolve(resolved.topology, read_target_facts(job.options.model))
        endpoint = stack.enter_context(_endpoint(replace(job, resolved=resolved), work, narrator))
        stack.enter_context(ending_with(endpoint.server))
        check_renders(endpoint.url, endpoint.model)
        reading, written = job.reading, Regenerated()
        if job.sampling:
            written = _regenerate(job, job.sampling, endpoint, work, narrator)
            reading = replace(reading, conversations=written.conversations)
        text = f"tokenising {len(reading.conversations)} conversations with speculators"
        with narrator.step("preprocess", text, "up to 15 s of imports, then some 200 conversations a second"):
            prepared = prepare_dataset(
                reading.conversations,
                job.options,
                job.out,
                render_endpoint=endpoint.url,
                inputs=job.inputs.digest,
                described=job.inputs.described,
            )
    return _outcome(job, prepared, written, narrator)


def outcome_of(job: Job, dataset: Dataset, *, made: bool) -> Outcome:
    """What a data set is, whatever it took to make it."""
    return Outcome(
        path=str(job.out),
        made=made,
        num_samples=len(dataset),
        num_tokens=dataset.info.num_tokens,
        num_trained_tokens=dataset.info.num_trained_tokens,
        fingerprint=dataset.fingerprint,
        lengths_tokens=percentiles(dataset.lengths),
        num_conversations=len(job.reading.conversations),
        num_skipped=len(job.reading.skipped),
    )


def _outcome(job: Job, prepared: Prepared, written: Regenerated, narrator: Narrator) -> Outcome:
    return replace(
        outcome_of(job, Dataset.open(job.out), made=True),
        num_unanswered=len(written.failed),
        num_empty_answers=written.num_empty,
        num_cut_answers=written.num_cut,
        num_reused_answers=written.num_reused,
        num_cut_samples=prepared.num_cut,
        dropped=prepared.dropped,
        seconds=narrator.seconds,
    )


def _regenerate(job: Job, sampling: Sampling, endpoint: Endpoint, work: Path, narrator: Narrator) -> Regenerated:
    """Every answer anew, within the share of failures that is allowed. Raises DataError, RegenerationFailed."""
    answers = work / ANSWERS
    if not answers.exists() and (job.out / ANSWERS).is_file():
        shutil.copyfile(job.out / ANSWERS, answers)  # of a data set made with other options: what fits is reused
    conversations = job.reading.conversations
    started_s = time.monotonic()
    text = f"the target answers {len(conversations)} conversations"
    with narrator.bar("regenerate", text, len(conversations)) as bar:

        def show(num_done: int, so_far: Regenerated) -> None:
            bar.update(num_done, f"{so_far.num_tokens / max(time.monotonic() - started_s, 0.1):,.0f} tokens/s")

        server = Server(endpoint.url, endpoint.model, job.concurrency)
        written = asyncio.run(regenerate(conversations, server, sampling, answers, show))
    narrator.problems(written.failed, "conversations without an answer, skipped")
    check_share(len(written.conversations) + written.num_empty, written.failed, job.max_bad_frac)
    return written


@contextlib.contextmanager
def _endpoint(job: Job, work: Path, narrator: Narrator) -> Iterator[Endpoint]:
    """The server that was named, or one of our own that ends with the block."""
    if job.endpoint:
        yield Endpoint(job.endpoint, served_model(job.endpoint), None)
        return
    if not job.resolved.facts.is_local:
        narrator.say(f"target {job.options.model} is no directory here: vLLM loads it from its hub or cache")
    usual = "usually 25-50 s on CPU, minutes for a large model" if job.sampling else "usually about 10 s"
    log = work / SERVER_LOG
    with contextlib.ExitStack() as stack:
        text = f"starting vLLM to {'write and ' if job.sampling else ''}render"
        with narrator.step("server", text, f"{usual}; log: {log}"):
            timeout_s = job.resolved.topology.engines.start_timeout_s
            server = stack.enter_context(local_server(lambda port: _command(job, port), log, timeout_s))
        yield Endpoint(server.base_url, job.options.model, server)


def _command(job: Job, port: int) -> Command:
    writes = job.sampling is not None
    command = server_command(job.resolved, port=port, writes=writes, threads=job.threads, cpu_flags=cpu_flags())
    return command.argv, command.env


@contextlib.contextmanager
def ending_with(server: VllmServer | None) -> Iterator[None]:
    """Leave the block with the server's own error when the server dies: speculators would retry for hours."""
    over, died = threading.Event(), threading.Event()

    def watch(server: VllmServer) -> None:
        while not over.wait(ALIVE_POLL_S):
            if not server.alive():
                died.set()
                # a real signal, which ends a wait at once; _thread.interrupt_main() would let it run to its end
                signal.pthread_kill(threading.main_thread().ident or 0, INTERRUPT)
                return

    if server is None:
        yield
        return
    before = signal.signal(INTERRUPT, signal.default_int_handler)
    watcher = threading.Thread(target=watch, args=(server,), name="server-watch", daemon=True)
    watcher.start()
    try:
        yield
    except BaseException as error:
        if died.is_set():
            raise server.exited() from error
        raise
    finally:
        over.set()
        watcher.join(WATCH_END_TIMEOUT_S)
        signal.signal(INTERRUPT, before)


@contextlib.contextmanager
def exclusively(out: Path) -> Iterator[None]:
    """Keep a second `prepare` off the same data set, by a lock on its work directory. Raises UsageError."""
    work = work_directory(out)
    work.mkdir(parents=True, exist_ok=True)
    handle = os.open(work, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(f"another prepare is making {out}: wait for it, or name another --out") from error
        yield
    finally:
        os.close(handle)
