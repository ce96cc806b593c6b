"""Repeats a read whose result fails its check: a bad transfer or a flaky cache is not damage of the stored object."""

import logging
from collections.abc import Callable
from typing import TypeVar

from statebed.errors import CorruptObjectError

T = TypeVar("T")
_logger = logging.getLogger(__name__)


def read_checked(read: Callable[[], T]) -> T:
    """Return the result of `read`. If it raises CorruptObjectError, log that and call it once more."""
    try:
        return read()
    except CorruptObjectError as error:
        _logger.warning("%s is read again: %s", error.where, error.what)
    return read()
