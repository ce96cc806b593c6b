"""Server-sent events that notify open pages of new records.

All pages of a job share one watcher, which looks up the next record number with one small request, with exponential
back-off while nothing changes. The watcher ends with its last page. The number of pages is bounded.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import anyio.to_thread
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from statebed.errors import JobNotFoundError, StatebedError

MAX_PAGES = 100
FIRST_WAIT_SECONDS = 0.4
LONGEST_WAIT_SECONDS = 5.0
_SLOWER = 1.4
HEARTBEAT_SECONDS = 15.0
RETRY_MILLISECONDS = 3000

Look = Callable[[], str]
"""Returns a text that differs if there is something new."""


@dataclass(eq=False)
class _Watcher:
    look: Look
    pages: set[asyncio.Queue[str]] = field(default_factory=set)
    last: str = ""
    task: asyncio.Task[None] | None = None

    async def watch(self) -> None:
        wait = FIRST_WAIT_SECONDS
        while True:
            event = await self._looked()
            if event:
                wait = FIRST_WAIT_SECONDS
                for page in self.pages:
                    page.put_nowait(event)
            await asyncio.sleep(wait)
            wait = min(wait * _SLOWER, LONGEST_WAIT_SECONDS)

    async def _looked(self) -> str:
        """Return the next event, or an empty string if nothing has changed."""
        try:
            news = event("news", await anyio.to_thread.run_sync(self.look))
        except JobNotFoundError as error:
            news = event("gone", error.what)
        except (StatebedError, OSError) as error:
            news = event("trouble", getattr(error, "what", str(error)))
        if news == self.last:
            return ""
        self.last = news
        return news


class Broadcast:
    """Watchers of a dashboard, by name of what they watch."""

    def __init__(self, max_pages: int = MAX_PAGES) -> None:
        self._watchers: dict[str, _Watcher] = {}
        self._max_pages = max_pages
        self._open = 0
        self._closing = asyncio.Event()

    @property
    def open(self) -> int:
        """Number of listening pages."""
        return self._open

    def close(self) -> None:
        """End all streams, so that the server can stop."""
        self._closing.set()

    def stream(self, name: str, look: Look) -> Response:
        """Return the event stream for a page, or status 503 if too many pages are open."""
        if self._open >= self._max_pages:
            return PlainTextResponse(
                "too many open pages\n", status_code=503, headers={"retry-after": "30", "cache-control": "no-store"}
            )
        return StreamingResponse(
            self._told(name, look),
            media_type="text/event-stream",
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )

    async def _told(self, name: str, look: Look) -> AsyncIterator[str]:
        watcher = self._watchers.setdefault(name, _Watcher(look))
        mine: asyncio.Queue[str] = asyncio.Queue()
        watcher.pages.add(mine)
        self._open += 1
        try:
            if watcher.task is None:
                watcher.task = asyncio.create_task(watcher.watch())
            yield f"retry: {RETRY_MILLISECONDS}\n\n"
            if watcher.last:
                yield watcher.last
            while not self._closing.is_set():
                yield await self._next(mine)
        finally:
            self._open -= 1
            watcher.pages.discard(mine)
            if not watcher.pages:
                self._watchers.pop(name, None)
                if watcher.task is not None:
                    watcher.task.cancel()

    async def _next(self, mine: "asyncio.Queue[str]") -> str:
        """Wait for the next event. Return a heartbeat if none arrives in time or the dashboard closes."""
        news, end = asyncio.ensure_future(mine.get()), asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait({news, end}, timeout=HEARTBEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            return news.result() if news.done() else ": heartbeat\n\n"
        finally:
            for waiting in (news, end):
                waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(news, end, return_exceptions=True)


def event(name: str, text: str) -> str:
    """Format one server-sent event."""
    return f"event: {name}\ndata: {json.dumps(text)}\n\n"
