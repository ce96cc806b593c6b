"""New records, told to open pages as they come (server-sent events).

All pages of one job share one watcher, which looks for the next number of the log: one small request, less and less
often while nothing comes. It ends with its last page. The number of pages is bounded.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import anyio.to_thread
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from statebed.errors import JobNotFoundError, StatebedError

MOST_PAGES = 100
FIRST_WAIT_SECONDS = 0.4
LONGEST_WAIT_SECONDS = 5.0
_SLOWER = 1.4
HEARTBEAT_SECONDS = 15.0
RETRY_MILLISECONDS = 3000

Look = Callable[[], str]
"""Gives a text that differs when there is something new."""


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
        """What there is to tell; nothing: nothing new."""
        try:
            found = event("news", await anyio.to_thread.run_sync(self.look))
        except JobNotFoundError as error:
            found = event("gone", error.what)
        except (StatebedError, OSError) as error:
            found = event("trouble", getattr(error, "what", str(error)))
        if found == self.last:
            return ""
        self.last = found
        return found


class Broadcast:
    """The watchers of a dashboard, by what they watch."""

    def __init__(self, most: int = MOST_PAGES) -> None:
        self._watchers: dict[str, _Watcher] = {}
        self._most = most
        self._open = 0
        self._closing = asyncio.Event()

    @property
    def open(self) -> int:
        """How many pages listen."""
        return self._open

    def close(self) -> None:
        """End all streams, so that the server can stop."""
        self._closing.set()

    def stream(self, name: str, look: Look) -> Response:
        """The answer to a page that wants to hear of news."""
        if self._open >= self._most:
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
        """What comes first: news, the end, or the time for a sign of life."""
        news, end = asyncio.ensure_future(mine.get()), asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait({news, end}, timeout=HEARTBEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            return news.result() if news.done() else ": still here\n\n"
        finally:
            for waiting in (news, end):
                waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(news, end, return_exceptions=True)


def event(name: str, text: str) -> str:
    """One event, as pages get it."""
    return f"event: {name}\ndata: {json.dumps(text)}\n\n"
