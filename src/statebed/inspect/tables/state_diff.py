"""What changed in a table between two epochs, row by row."""

from collections.abc import Iterator

import pyarrow as pa

CHANGE = "change"


class StateDiff:
    """The changes of one table; made by `diff_state`.

    Rows have the column `change` in front: 'insert', 'delete', 'update_before' or 'update_after'.
    """

    @property
    def schema(self) -> pa.Schema:
        raise NotImplementedError

    @property
    def key_columns(self) -> list[str]:
        raise NotImplementedError

    @property
    def since(self) -> int:
        """The epoch before."""
        raise NotImplementedError

    @property
    def until(self) -> int:
        """The epoch after."""
        raise NotImplementedError

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The changes, piece by piece; an update_after follows its update_before."""
        raise NotImplementedError

    def to_arrow(self) -> pa.Table:
        """All changes."""
        raise NotImplementedError

    def head(self, rows: int = 10) -> pa.Table:
        """The first changes that are found."""
        raise NotImplementedError

    def counts(self) -> dict[str, int]:
        """How many changes of each kind there are."""
        raise NotImplementedError


def diff_state(
    url: str,
    *,
    job: str | None = None,
    operator: str | None = None,
    table: str | None = None,
    since: int | str,
    until: int | str | None = None,
) -> StateDiff:
    """What turned the state at `since` into that at `until` (None: the newest epoch); a text names a savepoint."""
    raise NotImplementedError
