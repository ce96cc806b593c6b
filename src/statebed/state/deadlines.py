"""Waits with a deadline for work on other threads; the error names the work that has not finished."""

from collections.abc import Iterable, Mapping
from concurrent.futures import Future, wait
from typing import Any

from statebed.errors import CheckpointTimeoutError, CloseTimeoutError

_MAX_NAMES = 5


def wait_until_ended(running: Iterable[tuple[str, Future[Any]]], *, seconds: float, where: str, left: str) -> None:
    """Return when all work has finished, successfully or not; raise CloseTimeoutError after `seconds`.

    `left` says what stays behind if the time runs out.
    """
    # Futures cancelled before they start are done, but `wait` would still wait for them.
    names = {future: name for name, future in running if not future.done()}
    late = wait(names, timeout=seconds).not_done
    if not late:
        return
    late_names = sorted(names[future] for future in late)
    more = [f"and {len(late_names) - _MAX_NAMES} more"] if len(late_names) > _MAX_NAMES else []
    raise CloseTimeoutError(
        f"still under way after {seconds:g} seconds: {', '.join([*late_names[:_MAX_NAMES], *more])}",
        where=where,
        fix=f"check that the store and the local disk respond, then close it again; until then it keeps {left}",
    )


def wait_until_durable(checkpoints: Mapping[int, Future[Any]], *, seconds: float, where: str) -> None:
    """Return when the checkpoints of these epochs are durable, or raise the first failure."""
    late = wait(checkpoints.values(), timeout=seconds).not_done
    if late:
        epochs = sorted(epoch for epoch, future in checkpoints.items() if future in late)
        raise CheckpointTimeoutError(
            f"the checkpoints of the epochs {epochs} are not durable after {seconds:g} seconds",
            where=where,
            fix="check that the store responds; nothing was compacted, so try again, perhaps with a longer time-out",
        )
    for future in checkpoints.values():
        future.result()
