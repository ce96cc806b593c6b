"""News of a job come to its pages: at once, to all of them, from one watcher, and within bounds."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from dashboard_jobs import written
from starlette.responses import StreamingResponse

from statebed.errors import JobNotFoundError, StoreUnavailableError
from statebed.storage import LocalStore
from statebed.ui import live_updates
from statebed.ui.live_updates import Broadcast
from statebed.ui.location import StateLocation

WITHIN_SECONDS = 20.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_updates, "FIRST_WAIT_SECONDS", 0.02)
    monkeypatch.setattr(live_updates, "LONGEST_WAIT_SECONDS", 0.05)


def lines(broadcast: Broadcast, look: live_updates.Look, name: str = "job") -> AsyncIterator[str]:
    answer = broadcast.stream(name, look)
    assert isinstance(answer, StreamingResponse)
    return answer.body_iterator  # type: ignore[return-value]


async def event(stream: AsyncIterator[str], name: str = "news") -> str:
    """The text of the next event of a kind."""
    async with asyncio.timeout(WITHIN_SECONDS):
        async for piece in stream:
            if piece.startswith(f"event: {name}\n"):
                return str(json.loads(piece.partition("data: ")[2]))
    pytest.fail(f"no {name}")


def test_a_new_record_is_told_to_every_open_page(tmp_path: Path) -> None:
    async def scene() -> None:
        reader = StateLocation(str(tmp_path)).job("rides")
        broadcast = Broadcast()
        with written(LocalStore(tmp_path)) as writer:
            writer.epochs(2)
            one, two = (lines(broadcast, lambda: str(reader.head())) for _ in range(2))
            assert await event(one) == "3"
            assert await event(two) == "3"
            await asyncio.to_thread(writer.epochs, 1)
            assert await event(one) == "4"
            assert await event(two) == "4"

    asyncio.run(scene())


def test_pages_of_one_job_share_a_watcher_that_ends_with_the_last_of_them() -> None:
    looks = 0

    def look() -> str:
        nonlocal looks
        looks += 1
        return str(looks)

    async def scene() -> None:
        broadcast = Broadcast()
        pages = [lines(broadcast, look) for _ in range(5)]
        for page in pages:
            await event(page)
        told = [int(await event(page)) for page in pages]
        assert max(told) - min(told) <= 1  # had each its own, the numbers would be far apart
        assert broadcast.open == 5
        for page in pages:
            await page.aclose()  # type: ignore[attr-defined]
        assert broadcast.open == 0
        before = looks
        await asyncio.sleep(0.3)
        assert looks <= before + 1

    asyncio.run(scene())


def test_no_more_pages_than_allowed_are_served() -> None:
    async def scene() -> None:
        broadcast = Broadcast(max_pages=2)
        pages = [lines(broadcast, lambda: "1") for _ in range(2)]
        for page in pages:
            await event(page)
        refused = broadcast.stream("job", lambda: "1")
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "30"
        await pages[0].aclose()  # type: ignore[attr-defined]
        assert broadcast.stream("job", lambda: "1").status_code == 200

    asyncio.run(scene())


def test_trouble_and_the_end_of_a_job_are_told_and_looking_goes_on() -> None:
    answers = iter([StoreUnavailableError("no answer"), "7", JobNotFoundError("gone"), "1"])

    def look() -> str:
        answer = next(answers, "1")
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    async def scene() -> None:
        page = lines(Broadcast(), look)
        assert await event(page, "trouble") == "no answer"
        assert await event(page) == "7"
        assert await event(page, "gone") == "gone"
        assert await event(page) == "1"

    asyncio.run(scene())


def test_nothing_new_is_a_sign_of_life_and_looks_become_rarer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_updates, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(live_updates, "LONGEST_WAIT_SECONDS", 10.0)
    looks = 0

    def look() -> str:
        nonlocal looks
        looks += 1
        return "same"

    async def scene() -> None:
        page = lines(Broadcast(), look)
        await event(page)
        beats = 0
        async with asyncio.timeout(WITHIN_SECONDS):
            async for piece in page:
                beats += piece.startswith(":")
                if beats == 20:
                    break
        assert looks <= 10  # after a second: 0.02 s, and each time 1.4 times as long

    asyncio.run(scene())


def test_streams_end_when_the_server_stops() -> None:
    async def scene() -> None:
        broadcast = Broadcast()
        page = lines(broadcast, lambda: "1")
        await event(page)
        broadcast.close()
        async with asyncio.timeout(WITHIN_SECONDS):
            async for _ in page:
                pass
        assert broadcast.open == 0

    asyncio.run(scene())
