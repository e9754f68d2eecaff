"""An engine that lies on order, for tests of what a run does then: ``python -m dspark_train.engine.liar serve ...``.

Starts an honest entry as its child on another port, passes requests on to it, and answers some itself, with a lie, as
the file named by DSPARK_LIES_FILE says (see `lies.py`). It ends when its child ends, and its child when it does.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from dspark_train.engine.extract import request_body
from dspark_train.engine.lies import PUT_MODES, Order, Orders, SpoiltStates, spoilt_tokens
from dspark_train.engine.marker import Marker
from dspark_train.engine.stand_in import (
    Receive,
    Send,
    answer_of,
    body_of,
    join_store,
    parse,
    respond,
    server_config,
)
from dspark_train.engine.stand_in_writers import Writer
from dspark_train.store.child import ChildProcess
from dspark_train.store.ports import reserve_port

HONEST_VARIABLE = "DSPARK_HONEST_ENTRY"
LIES_VARIABLE = "DSPARK_LIES_FILE"
DEFAULT_ENTRY = "dspark_train.engine.vllm_entry"
CHILD_POLL_S = 0.2
CHILD_GRACE_S = 5.0

logger = logging.getLogger(__name__)


class Liar:
    """The ASGI application. honest_url: of the child. The store is joined with the first lie that puts something."""

    def __init__(self, options: Any, honest_url: str, orders: Orders) -> None:
        self._options, self._orders = options, orders
        self._http = httpx.AsyncClient(base_url=honest_url, timeout=None, trust_env=False)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lie")
        self._writer: Writer | None = None
        self._spoilt: SpoiltStates | None = None

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        body = await body_of(receive)
        order = self._order_for(scope["path"], body)
        if order is None:
            await respond(send, *await self._pass_on(scope, body))
            return
        logger.warning("lying: %s", order.mode)
        if order.mode == "hang":
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        if order.mode == "slow":
            await asyncio.sleep(order.delay_s)
            await respond(send, *await self._pass_on(scope, body))
            return
        await respond(send, *await self._lie(order, scope, json.loads(body)))

    def _order_for(self, path: str, body: bytes) -> Order | None:
        """Lies are about extractions only: health is not liveness."""
        if path != "/v1/completions" or not (json.loads(body).get("kv_transfer_params") or {}).get("key"):
            return None
        order = self._orders.next()
        if self._orders.problem:
            logger.warning("no lies: %s", self._orders.problem)
        return order

    async def _pass_on(self, scope: dict[str, Any], body: bytes) -> tuple[int, bytes]:
        headers = {"content-type": "application/json"}
        try:
            answer = await self._http.request(scope["method"], scope["path"], content=body, headers=headers)
        except httpx.TransportError as error:
            return 503, json.dumps({"error": f"the honest engine does not answer: {error}"}).encode()
        return answer.status_code, answer.content

    async def _lie(self, order: Order, scope: dict[str, Any], fields: dict[str, Any]) -> tuple[int, bytes]:
        params, token_ids = fields["kv_transfer_params"], fields["prompt"]
        key, segment = params["key"], params.get("segment", "")
        if order.mode == "error_500":
            return 500, b'{"error": "EngineCore encountered an issue"}'
        writer, spoilt = await asyncio.get_running_loop().run_in_executor(self._thread, self._join)
        answer = answer_of(key, segment, token_ids, writer.shape)
        if order.mode == "stale_key":
            stale = request_body(fields["model"], token_ids, f"{key}-stale", segment)
            status, content = await self._pass_on(scope, json.dumps(stale).encode())
            return (status, content) if status != httpx.codes.OK else (status, json.dumps(answer).encode())
        if order.mode == "wrong_answer":
            answer["choices"][0]["prompt_token_ids"] = [token + 1 for token in token_ids]
        elif order.mode == "non_finite":
            marker = Marker("wrong", "Non-finite producer tensor 'hidden_states'")
            self._thread.submit(writer.fail, key, segment, marker)
        elif order.mode in PUT_MODES:
            self._thread.submit(self._write, order.mode, token_ids, key, segment, writer, spoilt)
        return 200, json.dumps(answer).encode()

    def _join(self) -> tuple[Writer, SpoiltStates]:
        if self._writer is None or self._spoilt is None:
            self._writer = join_store(self._options)
            self._writer.states = self._spoilt = SpoiltStates(self._writer.states)
        return self._writer, self._spoilt

    @staticmethod
    def _write(
        mode: str, token_ids: Sequence[int], key: str, segment: str, writer: Writer, spoilt: SpoiltStates
    ) -> None:
        spoilt.mode = mode
        writer.write(spoilt_tokens(mode, token_ids), key, segment)


def with_port(argv: Sequence[str], port: int) -> list[str]:
    """``argv`` with another ``--port``."""
    changed = list(argv)
    if "--port" in changed:
        changed[changed.index("--port") + 1] = str(port)
    return changed


def own_log() -> Path:
    """The file to which this process prints, for its child to print to as well."""
    target = os.readlink(f"/proc/{os.getpid()}/fd/1")
    return Path(target) if Path(target).is_file() else Path(os.devnull)


async def serve(server: uvicorn.Server, child: ChildProcess) -> None:
    """Serve until a signal comes, or the child has ended."""

    async def watch() -> None:
        while not await asyncio.to_thread(child.wait, CHILD_POLL_S):
            pass
        server.should_exit = True

    watching = asyncio.create_task(watch())
    await server.serve()
    watching.cancel()


def main(argv: Sequence[str] | None = None) -> None:
    """Run the honest entry on these arguments, and stand before it."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    argv = sys.argv[1:] if argv is None else list(argv)
    options, lock = parse(argv), reserve_port()
    honest = os.environ.get(HONEST_VARIABLE) or DEFAULT_ENTRY
    child = ChildProcess(["python", "-m", honest, *with_port(argv, lock.port)], {}, own_log())
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    child.start()
    try:
        if options.headless:
            while not child.wait(CHILD_POLL_S):
                pass
        else:
            orders = Orders(Path(os.environ.get(LIES_VARIABLE) or os.devnull), options.port)
            liar = Liar(options, f"http://{options.host}:{lock.port}", orders)
            asyncio.run(serve(uvicorn.Server(server_config(liar, options.host, options.port)), child))
    finally:
        code = child.exit_code()
        child.stop(CHILD_GRACE_S)
        os._exit(0 if code is None else abs(code) or 1)  # lies in flight are not waited for


if __name__ == "__main__":
    main()
