"""The controller's HTTP API: state, history, events, logs and metrics out, orders in. Small answers, never tensors.

Who may ask is `gate.py`'s. Every answer is bounded, whatever the length of the run.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import uvicorn
from fastapi import FastAPI, Header, HTTPException, Query, Request, Response, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse
from fastapi.security import HTTPBearer
from fastapi.staticfiles import StaticFiles
from starlette.middleware.gzip import GZipMiddleware

from dspark_train.controller import event_pages
from dspark_train.controller.api_models import (
    Accepted,
    EventPage,
    HistoryAnswer,
    LogList,
    LogTail,
    RebalanceOrder,
    Refusal,
    ScaleAnswer,
    ScaleOrder,
    StopOrder,
)
from dspark_train.controller.gate import Gate
from dspark_train.controller.recorder import Recorder
from dspark_train.controller.roster import Pool
from dspark_train.controller.scaling import Busy
from dspark_train.errors import DSparkError, FileProblems, StartError, UsageError
from dspark_train.plan.run_layout import RunLayout
from dspark_train.report import pace
from dspark_train.report.log_tail import last_lines, log_paths
from dspark_train.report.metrics import CONTENT_TYPE, exposition
from dspark_train.report.state import RunState
from dspark_train.report.terminal import time_left

STARTUP_TIMEOUT_S = 20.0
LAST_ANSWERS_S = 1
"""What requests that are under way get at the end; streams are cut."""
PAGE_DIR = Path(__file__).parents[1] / "report" / "page"
MAX_STREAMS = 32
MAX_LOG_BYTES = 1 << 18
REFUSALS: dict[int | str, dict[str, Any]] = {
    401: {"model": Refusal, "description": "no token, or a wrong one"},
    422: {"model": Refusal, "description": "the order cannot be carried out, or is no order"},
}
BUSY: dict[int | str, dict[str, Any]] = {409: {"model": Refusal, "description": "not now: says why"}}


class Run(Protocol):
    """What the API needs of the controller. `scale`: see `Controller.scale`; `rebalance`: set the balance's mode."""

    @property
    def state(self) -> RunState: ...

    def order_stop(self, now: bool) -> None: ...

    def scale(
        self, orders: Mapping[Pool, str], dry_run: bool, drain: Sequence[str], undrain: Sequence[str]
    ) -> dict[str, Any]: ...

    def rebalance(self, mode: Literal["auto", "advise", "off"]) -> None: ...


def build_app(token: str, run: Run, layout: RunLayout) -> FastAPI:
    """The routes, behind the token, and the page."""
    recorder = Recorder(layout, lambda: run.state)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(recorder.run())
        yield
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        recorder.write()

    app = FastAPI(
        title="dspark-train controller",
        description="One run: its state, history, events and logs, and orders to it. Bearer token on every route.",
        docs_url=None,
        redoc_url=None,
        openapi_url="/v1/openapi.json",
        responses=REFUSALS,
        dependencies=[Security(HTTPBearer(auto_error=False))],  # for the document: it is the gate that looks
        lifespan=lifespan,
    )
    _add_views(app, run, layout, recorder)
    _add_journal(app, layout, hidden=token)
    _add_orders(app, run)

    @app.exception_handler(RequestValidationError)
    async def say_briefly(_: Request, error: RequestValidationError) -> JSONResponse:
        problems = [f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in error.errors()]
        return JSONResponse({"detail": "; ".join(problems)}, 422)

    @app.get("/", include_in_schema=False)
    async def get_page() -> FileResponse:
        return FileResponse(PAGE_DIR / "index.html")

    app.mount("/page", StaticFiles(directory=PAGE_DIR))
    app.add_middleware(GZipMiddleware, minimum_size=2048, compresslevel=3)
    app.add_middleware(Gate, token=token)
    return app


def _add_views(app: FastAPI, run: Run, layout: RunLayout, recorder: Recorder) -> None:
    @app.get("/v1/state", response_model=RunState)
    async def get_state() -> Response:
        """The run now, as `status --json` prints it."""
        return Response(run.state.to_json(), media_type="application/json")

    @app.get("/v1/history")
    async def get_history(
        after_s: Annotated[float, Query(description="Unix seconds.", allow_inf_nan=False)] = 0.0,
        width_s: Annotated[float, Query(description="Of the points that one has.", allow_inf_nan=False)] = 0.0,
    ) -> HistoryAnswer:
        """The run over time; with what one has already, only what is new."""
        left = time_left(run.state, *pace.paces_s(recorder.history, layout.metrics))
        return HistoryAnswer(
            **recorder.history.since(after_s, width_s),
            left_s=None if left is None else [round(left.low_s, 1), round(left.high_s, 1)],
        )

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def get_metrics() -> Response:
        """For Prometheus."""
        return Response(exposition(run.state, recorder.totals, time.time()), media_type=CONTENT_TYPE)


def _add_journal(app: FastAPI, layout: RunLayout, hidden: str) -> None:
    num_streams = 0

    async def counted(ident: int) -> AsyncIterator[str]:
        nonlocal num_streams
        num_streams += 1
        try:
            async for text in event_pages.stream(layout.events, ident):
                yield text
        finally:
            num_streams -= 1

    @app.get(
        "/v1/events",
        response_model=EventPage,
        responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}, 503: {"model": Refusal}},
    )
    async def get_events(
        after: Annotated[int | None, Query(ge=0, le=2**53, description="Events after this id.")] = None,
        limit: Annotated[int, Query(ge=1, le=500)] = 200,
        accept: Annotated[str, Header()] = "",
        last_event_id: Annotated[str, Header(max_length=32)] = "",
    ) -> Response:
        """The newest events, or those after an id; for `Accept: text/event-stream`, those to come as well."""
        if "text/event-stream" in accept:
            if num_streams >= MAX_STREAMS:
                raise HTTPException(503, f"{MAX_STREAMS} streams are open already: close one, or ask for pages")
            newest = event_pages.last(layout.events, 0).next_id
            resumed = int(last_event_id) if re.fullmatch(r"\d{1,16}", last_event_id) else None
            ident = next((one for one in (resumed, after) if one is not None), newest)
            return StreamingResponse(counted(ident), media_type="text/event-stream")
        read = event_pages.last if after is None else event_pages.after
        args = (layout.events, limit) if after is None else (layout.events, after, limit)
        page = read(*args)  # type: ignore[operator]
        return JSONResponse({"events": page.events, "next_id": page.next_id, "has_more": page.has_more})

    @app.get("/v1/logs")
    def get_logs() -> LogList:
        """Which logs there are."""
        return LogList(logs={name: path.stat().st_size for name, path in log_paths(layout.logs).items()})

    @app.get("/v1/logs/{member}", responses={404: {"model": Refusal}})
    def get_log(member: str, lines: Annotated[int, Query(ge=1, le=2000)] = 200) -> LogTail:
        """The last lines of one log."""
        path = log_paths(layout.logs).get(member)
        if path is None:
            raise HTTPException(404, "no log of that name: see /v1/logs")
        found = [line.replace(hidden, "***") for line in last_lines(path, lines, MAX_LOG_BYTES)]
        return LogTail(member=member, num_bytes=path.stat().st_size, lines=found)


def _add_orders(app: FastAPI, run: Run) -> None:
    @app.post("/v1/stop")
    async def post_stop(order: StopOrder) -> Accepted:
        """Stop at the next boundary, with a checkpoint, or at once without."""
        run.order_stop(order.now)
        return Accepted()

    @app.post("/v1/rebalance", responses=BUSY)
    def post_rebalance(order: RebalanceOrder) -> Accepted:
        """Set the balance's mode; "auto" also unpins the pools."""
        with _refusing():
            run.rebalance(order.mode)
        return Accepted()

    @app.post("/v1/scale", responses=BUSY)
    def post_scale(order: ScaleOrder) -> ScaleAnswer:
        """Begin a transaction, or say what it would do."""
        pools: dict[Pool, str | None] = {"inference": order.inference, "trainers": order.trainers}
        with _refusing():
            orders = {pool: text for pool, text in pools.items() if text is not None}
            made = run.scale(orders, order.dry_run, order.drain, order.undrain)
        return ScaleAnswer.model_validate(made)


@contextmanager
def _refusing() -> Iterator[None]:
    """Our errors as answers."""
    try:
        yield
    except (UsageError, FileProblems) as error:
        raise HTTPException(422, str(error)) from error
    except (Busy, StartError) as error:
        raise HTTPException(409, str(error)) from error
    except DSparkError as error:
        raise HTTPException(500, str(error)) from error


class ApiServer:
    """Serves an app from a thread of this process."""

    def __init__(self, app: FastAPI, host: str, port: int) -> None:
        config = uvicorn.Config(
            app,
            host=host,
            port=port,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=LAST_ANSWERS_S,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, name="api", daemon=True)
        self.url = f"http://{host}:{port}"

    def start(self) -> None:
        """Serve; returns when the port is open. Raises StartError."""
        self._thread.start()
        waiting = threading.Event()
        for _ in range(round(STARTUP_TIMEOUT_S / 0.02)):
            if self._server.started:
                return
            if not self._thread.is_alive():
                break
            waiting.wait(0.02)
        raise StartError(f"the controller's API does not listen on {self.url}: is the port taken?")

    def stop(self) -> None:
        """Close the port; twice is fine."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(5)
