"""A stand-in for vLLM, for tests and rehearsals: ``python -m dspark_train.engine.stand_in serve MODEL --host H ...``.

Takes vLLM's command line as the plan writes it, answers /health and the extraction requests of `extract.py`, and puts
samples into the store as the connector does; flags of no meaning to it are ignored. It runs no model: hidden states are
computed from the token ids (`stand_in_states.py`), so a run with it has the same bytes however often it is repeated,
scaled or killed. Starts in two seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import uvicorn

from dspark_train.data.target import read_target_facts
from dspark_train.engine.extract import MANIFEST_VERSION, HiddenShape, tensors_of
from dspark_train.engine.puts import limit_transfers
from dspark_train.engine.stand_in_states import StandInStates
from dspark_train.engine.stand_in_writers import DiskWriter, SampleWriter, Writer
from dspark_train.errors import StartError
from dspark_train.store.on_mooncake import join

PACE_VARIABLE = "DSPARK_STAND_IN_TOKENS_PER_S"
"""How fast it is at most; not set, as fast as it can be."""
STOP_GRACE_S = 1

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
logger = logging.getLogger(__name__)


class Pace:
    """Says how long a request has to wait, so that no more than ``tokens_per_s`` (0: no limit) are answered."""

    def __init__(self, tokens_per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._tokens_per_s, self._clock = tokens_per_s, clock
        self._free_s = clock()

    def wait_s(self, num_tokens: int) -> float:
        """Seconds from now until ``num_tokens`` more have been worked on, after all that came before."""
        if not self._tokens_per_s:
            return 0.0
        self._free_s = max(self._free_s, self._clock()) + num_tokens / self._tokens_per_s
        return self._free_s - self._clock()


class StandIn:
    """The ASGI application. Answers when a model would have; the put may end later, as vLLM's does."""

    def __init__(self, writer: Writer, pace: Pace) -> None:
        self._writer, self._shape, self._pace = writer, writer.shape, pace
        # One thread: a put in flight spins, and a second one would take all cores of a small machine.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="stand-in-put")

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        status, answer = 404, {"error": f"the stand-in does not serve {scope['path']}"}
        if scope["path"] == "/health":
            status, answer = 200, {}
        elif scope["path"] == "/v1/completions" and scope["method"] == "POST":
            status, answer = await self._complete(await body_of(receive))
        await respond(send, status, json.dumps(answer).encode())

    async def _complete(self, body: bytes) -> tuple[int, dict[str, Any]]:
        try:
            fields = json.loads(body)
            token_ids = [int(token) for token in fields["prompt"]]
            params = fields.get("kv_transfer_params") or {}
            key, segment = str(params.get("key") or ""), str(params.get("segment") or "")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return 400, {"error": f"not an extraction request: {type(error).__name__} {error}"}
        if not token_ids:
            return 400, {"error": "the prompt is empty"}
        await asyncio.sleep(self._pace.wait_s(len(token_ids)))
        if key:
            self._thread.submit(self._writer.write, token_ids, key, segment)
        return 200, answer_of(key, segment, token_ids, self._shape)


def answer_of(key: str, segment: str, token_ids: Sequence[int], shape: HiddenShape) -> dict[str, Any]:
    """What vLLM answers to a request of `extract.request_body`. key "": nothing is put."""
    num_tokens = len(token_ids)
    choice = {"index": 0, "text": "", "finish_reason": "length", "prompt_token_ids": list(token_ids), "token_ids": [0]}
    usage = {"prompt_tokens": num_tokens, "completion_tokens": 1, "total_tokens": num_tokens + 1}
    manifest = manifest_of(key, segment, num_tokens, shape) if key else None
    return {"object": "text_completion", "choices": [choice], "usage": usage, "kv_transfer_params": manifest}


def manifest_of(key: str, segment: str, num_tokens: int, shape: HiddenShape) -> dict[str, Any]:
    """What the connector answers of a sample: where its tensors lie in the object."""
    layout = shape.layout(num_tokens)
    metadata = {"num_tokens": num_tokens, "total_aligned_bytes": layout.total_bytes, "extract_mode": "prompt_only"}
    tensors = tensors_of(num_tokens, shape)
    return {
        "handle": key,
        "version": MANIFEST_VERSION,
        "tensors": tensors,
        "metadata": metadata,
        "segment": segment,
    }


async def body_of(receive: Receive) -> bytes:
    """The whole body of the request."""
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


async def respond(send: Send, status: int, content: bytes) -> None:
    """Send a whole answer, JSON."""
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The flags of `vllm serve` that mean something here; all others are ignored."""
    parser = argparse.ArgumentParser(prog="stand_in", allow_abbrev=False)
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--headless", action="store_true")
    parser.add_argument("--kv-transfer-config", type=json.loads, required=True)
    parser.add_argument("--speculative-config", type=json.loads, required=True)
    return parser.parse_known_args(argv)[0]


def join_store(options: argparse.Namespace) -> Writer:
    """Join the store as the connector does. Raises StartError, StoreError, DataError."""
    width = read_target_facts(options.model).hidden_size
    if width is None:
        raise StartError(f"{options.model}/config.json does not give the target's hidden size")
    layer_ids = options.speculative_config["draft_model_config"]["hf_config"]["eagle_aux_hidden_state_layer_ids"]
    states, shape = StandInStates(layer_ids, width), HiddenShape(len(layer_ids), width, options.dtype)
    extra = options.kv_transfer_config["kv_connector_extra_config"]
    if "disk" in extra:
        return DiskWriter(Path(extra["disk"]["root"]), states, shape)
    mooncake = extra["mooncake"]
    limit_transfers()
    native = join(
        local_hostname=mooncake["local_hostname"],
        master=mooncake["master_server_address"],
        buffer_bytes=mooncake["local_buffer_size"],
        protocol=mooncake["protocol"],
        device=mooncake["device_name"],
    )
    return SampleWriter(native, states, shape)


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until a signal comes. A follower of an engine on several nodes (--headless) only waits for that."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    options = parse(sys.argv[1:] if argv is None else argv)
    if options.headless:
        signal.pause()
    pace = Pace(float(os.environ.get(PACE_VARIABLE) or 0))
    uvicorn.Server(server_config(StandIn(join_store(options), pace), options.host, options.port)).run()
    os._exit(0)  # a put that hangs would be waited for; this client owns no segment that could be lost


def server_config(application: Any, host: str, port: int) -> uvicorn.Config:
    """A server that says little and ends at once."""
    return uvicorn.Config(
        application, host=host, port=port, log_level="warning", lifespan="off", timeout_graceful_shutdown=STOP_GRACE_S
    )


if __name__ == "__main__":
    main()
