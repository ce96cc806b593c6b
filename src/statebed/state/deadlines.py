"""Waits for what runs on other threads: each has a deadline, and an error that names what has not ended."""

from collections.abc import Iterable, Mapping
from concurrent.futures import Future, wait
from typing import Any

from statebed.errors import CheckpointTimeoutError, CloseTimeoutError

_MOST_NAMES = 5


def wait_until_ended(running: Iterable[tuple[str, Future[Any]]], *, seconds: float, where: str, left: str) -> None:
    """Return when all have ended, well or not. `left` is what stays behind when they do not."""
    # Who is cancelled before it begins is done, though `wait` would wait for it.
    names = {one: name for name, one in running if not one.done()}
    late = wait(names, timeout=seconds).not_done
    if not late:
        return
    told = sorted(names[one] for one in late)
    more = [f"and {len(told) - _MOST_NAMES} more"] if len(told) > _MOST_NAMES else []
    raise CloseTimeoutError(
        f"still under way after {seconds:g} seconds: {', '.join([*told[:_MOST_NAMES], *more])}",
        where=where,
        fix=f"see whether the store and the local disk answer, then close it again; until then it keeps {left}",
    )


def wait_until_durable(checkpoints: Mapping[int, Future[Any]], *, seconds: float, where: str) -> None:
    """Return when the checkpoints of these epochs are durable, or raise the first failure."""
    late = wait(checkpoints.values(), timeout=seconds).not_done
    if late:
        epochs = sorted(epoch for epoch, one in checkpoints.items() if one in late)
        raise CheckpointTimeoutError(
            f"the checkpoints of the epochs {epochs} are not durable after {seconds:g} seconds",
            where=where,
            fix="see whether the store answers; nothing was merged, so ask again, perhaps with a longer time-out",
        )
    for one in checkpoints.values():
        one.result()
