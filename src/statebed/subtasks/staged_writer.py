"""First phase of two-phase sinks: subtasks write rows that no reader sees yet, and report what the commit needs."""

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa


class StagedWriter(Protocol):
    """Writes the rows of a subtask for a later commit. It is pickled with the tasks of every epoch."""

    def write(self, rows: pa.Table, *, epoch: int, part: str) -> bytes:
        """Write the rows of a subtask and return what the commit needs, in at most 64 KiB.

        `part` names the subtask and is unique within the epoch; it can be part of a file name. A subtask with very many
        rows calls the method several times, with other parts.
        Several attempts of a task may run, also at the same time. They have the same rows and must return the same
        bytes, so names derive from the arguments or the rows, never from a clock or a random number. Nothing may be
        visible to readers before the commit. The method is not called if there are no rows.
        """


@dataclass(frozen=True)
class StagedOutput:
    """Writer of a two-phase sink for one stream of an operator."""

    sink_id: str
    stream: str
    writer: StagedWriter
