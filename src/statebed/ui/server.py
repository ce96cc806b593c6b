"""The dashboard as a web application (ASGI), and the server that runs it."""

import contextlib
import os
import sys
import threading
import webbrowser
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from statebed.errors import InputError, StatebedError
from statebed.metrics import CONTENT_TYPE, WatchedJobs
from statebed.ui import addresses
from statebed.ui.live_updates import Broadcast
from statebed.ui.location import StateLocation
from statebed.ui.pages import PageHandlers
from statebed.ui.security import Guard

_STATIC = Path(__file__).parent / "static"
_STOP_WITHIN_SECONDS = 3


def dashboard(url: str, *, allowed_hosts: Collection[str] = ()) -> Starlette:
    """Build the application that shows the state at `url`. Read-only."""
    location = StateLocation(url)
    pages = PageHandlers(location)
    broadcast = Broadcast()

    async def job_events(request: Request) -> Response:
        reader = location.job(request.path_params["job"])
        await run_in_threadpool(reader.head)  # raise the error of a missing job now
        return broadcast.stream(f"job {reader.log.job_id}", reader.news)

    async def events(request: Request) -> Response:  # noqa: ARG001 - the signature of pages
        return broadcast.stream("jobs", lambda: _heads(location))

    def page(pattern: str, shown: Callable[[Request], Response]) -> Route:
        return Route(pattern, shown, methods=["GET"])

    watched = WatchedJobs(url)

    def metrics(request: Request) -> Response:  # noqa: ARG001 - the signature of pages
        return Response(watched.text(), headers={"content-type": CONTENT_TYPE})

    def home(request: Request) -> Response:  # noqa: ARG001 - the signature of pages
        return RedirectResponse("/")

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:  # noqa: ARG001 - the signature of lifespans
        yield
        broadcast.close()
        location.close()

    application = Starlette(
        routes=[
            page("/", pages.jobs),
            page("/jobs", home),
            page("/metrics", metrics),
            Route("/events", events, methods=["GET"]),
            Route(addresses.EVENTS, job_events, methods=["GET"]),
            page(addresses.JOB, pages.job),
            page(addresses.EPOCHS, pages.epochs),
            page(addresses.EPOCH, pages.epoch),
            page(addresses.HISTORY, pages.history),
            page(addresses.EXCEPTIONS, pages.exceptions),
            page(addresses.OPERATOR, pages.operator),
            page(addresses.TABLE, pages.table),
            page(addresses.ROWS, pages.rows_part),
            page(addresses.CHANGES, pages.changes_part),
            Mount("/static", StaticFiles(directory=_STATIC)),
        ],
        middleware=[
            Middleware(Guard, names=tuple(allowed_hosts)),
            Middleware(GZipMiddleware, minimum_size=2000, compresslevel=4),  # does not compress event streams
        ],
        exception_handlers={
            StatebedError: pages.failed,
            HTTPException: pages.failed,
            500: pages.failed,
        },
        lifespan=lifespan,
    )
    application.state.broadcast = broadcast
    return application


def _heads(location: StateLocation) -> str:
    """Return the newest record number of each job and the state of its run."""

    def head(folder: str) -> str:
        try:
            return f"{folder} {location.job(folder).news()}"
        except StatebedError:
            return ""

    return "\n".join(location.gather(head, location.folders()))


class _DashboardServer(uvicorn.Server):
    """A server that reports its address, and ends open streams before it waits for them."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[str], None], broadcast: Broadcast) -> None:
        super().__init__(config)
        self._ready = ready
        self._broadcast = broadcast

    async def startup(self, sockets: "list[object] | None" = None) -> None:  # type: ignore[override]
        await super().startup(sockets)  # type: ignore[arg-type]
        if self.started:
            port = self.servers[0].sockets[0].getsockname()[1]
            host = self.config.host
            self._ready(f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/")

    async def shutdown(self, sockets: "list[object] | None" = None) -> None:  # type: ignore[override]
        self._broadcast.close()
        await super().shutdown(sockets)  # type: ignore[arg-type]


def _has_screen() -> bool:
    """Return whether a browser could open a window; a browser in the terminal would take it over."""
    return sys.platform in {"darwin", "win32"} or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def serve(
    url: str,
    *,
    host: str,
    port: int,
    allowed_hosts: Collection[str] = (),
    ready: Callable[[str], None],
    open_browser: bool = False,
) -> None:
    """Serve until interrupted; `ready` is called with the address. Port 0 picks a free one."""
    application = dashboard(url, allowed_hosts=allowed_hosts)

    def on_ready(address: str) -> None:
        ready(address)
        if open_browser and _has_screen():
            # Opening a browser may block until it exits.
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    config = uvicorn.Config(
        application,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_STOP_WITHIN_SECONDS,
        ws="none",
    )
    server = _DashboardServer(config, on_ready, application.state.broadcast)
    try:
        server.run()
    except KeyboardInterrupt:
        return
    except SystemExit as error:  # uvicorn exits this way if it cannot listen
        raise InputError(
            f"cannot listen on {host}, port {port}",
            fix="is the port in use? Pass another with --port, or 0 for a free one",
        ) from error
