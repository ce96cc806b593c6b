"""What a run takes from the world besides its store: time, fresh ids, waiting. Injected, so that tests own them."""

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
    """The clock (microseconds since 1970), a source of unique ids, and a way to wait (seconds)."""

    now_us: Callable[[], int] = _now_us
    """Return the time of the wall clock, which may be set back or forward at any time."""
    steady_seconds: Callable[[], float] = time.monotonic
    """For durations and deadlines: never goes back."""
    fresh_id: Callable[[], str] = _fresh_id
    sleep: Callable[[float], None] = time.sleep
    requests_at_once: int = 16
    """Requests of one kind that may be under way at a time; simulations say 1, so that there is one order of them."""
    written_by: str = f"statebed {version('statebed')}"
