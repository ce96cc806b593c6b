"""Environment of a run besides its store: time, unique ids and waiting. Injected, so that tests control them."""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version


def _now_us() -> int:
    return time.time_ns() // 1_000


def _fresh_id() -> str:
    return uuid.uuid4().hex


@dataclass(frozen=True)
class Environment:
    """The clock (microseconds since 1970), a source of unique ids, and a function that waits (seconds)."""

    now_us: Callable[[], int] = _now_us
    """Return the time of the wall clock, which may be set back or forward at any time."""
    steady_seconds: Callable[[], float] = time.monotonic
    """Monotonic clock for durations and deadlines."""
    fresh_id: Callable[[], str] = _fresh_id
    sleep: Callable[[float], None] = time.sleep
    requests_at_once: int = 64
    """Maximum number of concurrent requests of one kind; simulations use 1, which makes their order deterministic."""
    written_by: str = f"statebed {version('statebed')}"
