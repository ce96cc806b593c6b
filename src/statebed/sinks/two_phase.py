"""Base class of user-defined sinks with a two-phase commit.

Subtasks write their rows in parallel, invisibly, and return bytes. The bytes become part of the epoch's record. Once
the record exists, `commit` makes the rows of all subtasks visible. After a crash before the record, nothing is visible.
After a later crash, the next run calls `commit` again with the same bytes.
"""

import abc
from collections.abc import Sequence
from typing import ClassVar

from statebed.checkpoint import Publication
from statebed.protocol import Guarantee
from statebed.sinks.base import BaseSink
from statebed.subtasks.staged_writer import StagedWriter


class TwoPhaseSink(BaseSink):
    """A sink whose rows are written by subtasks and committed by the driver; derive from it and pass it to `write`.

    >>> class Prepared:
    ...     def write(self, rows, *, epoch, part):
    ...         return f"{epoch}/{part}".encode()  # write the rows somewhere under this name
    >>> class MySink(sb.TwoPhaseSink):
    ...     writer = Prepared()
    ...     def commit(self, epoch, data):
    ...         "Make everything visible that is prepared under the names in `data`."
    >>> MySink("results").guarantee.value
    'exactly once'
    """

    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE

    @property
    def described(self) -> str:
        return f"{type(self).__name__}, in two phases"

    @property
    @abc.abstractmethod
    def writer(self) -> StagedWriter:
        """Writer that runs in subtasks; must be picklable."""

    @abc.abstractmethod
    def commit(self, epoch: int, data: Sequence[bytes]) -> None:
        """Make the rows of an epoch visible. `data` holds what the writers returned, in the order of subtasks.

        Epochs are committed in order. A call may be repeated after a crash, and must then change nothing.
        """

    def publish(self, publication: Publication) -> None:
        pieces = sorted(publication.commit_data, key=lambda piece: piece.subtask_index)
        if pieces:
            self.commit(publication.epoch, [piece.data for piece in pieces])
