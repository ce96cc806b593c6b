"""Changelogs by key: which rows are new, which are deleted, and which replace another row with the same key.

Between operators a changelog is a set of rows with weights. Row-by-row readers need to know what happened to a key. The
user declares the key: a retraction and an addition with the same key are an update.
"""

import enum
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.columns import from_numpy
from statebed.format.stream_schema import weights_of
from statebed.operators.changelog import consolidated, group_equal, without_weight

ROW_KIND = "row_kind"
Integers = npt.NDArray[np.int64]


class RowKind(enum.StrEnum):
    """Kind of change that a row represents; retractions come before additions."""

    DELETE = "delete"
    UPDATE_BEFORE = "update_before"
    INSERT = "insert"
    UPDATE_AFTER = "update_after"


_KINDS = list(RowKind)
_WORD_BITS = 63


class KeyedChanges:
    """Net changes of an epoch by key.

    Retractions come first. Within a kind, rows are in the order of keys, so the n-th row before an update belongs to
    the n-th row after one.
    """

    def __init__(self, rows: pa.Table, key: Sequence[str]) -> None:
        net = consolidated(rows)
        weights = weights_of(net)
        numbers = np.repeat(np.arange(net.num_rows, dtype=np.int64), np.abs(weights))
        added = weights[numbers] > 0
        # Without key columns all rows are versions of one row.
        groups = group_equal(net.select(list(key))).group_of_rows()[numbers] if key else np.zeros_like(numbers)
        size = int(groups.max(initial=-1)) + 1
        counts = [np.bincount(groups[chosen], minlength=size) for chosen in (~added, added)]
        self.has_unique_keys = bool(counts[1].max(initial=0) <= 1)
        """Whether no key has several rows after the changes."""
        is_single = self.has_unique_keys and bool(counts[0].max(initial=0) <= 1)
        places = np.zeros_like(groups) if is_single else _place_in_group(groups, added)
        updates = np.minimum(*counts)[groups] > places
        kinds = 2 * added.astype(np.int64) + updates
        order = _order_by(kinds * size + groups)
        self._kinds = kinds[order]
        self.rows: pa.Table = without_weight(net).take(from_numpy(numbers[order], pa.int64()))

    def of(self, kind: RowKind) -> pa.Table:
        """Return the rows of one kind."""
        place = _KINDS.index(kind)
        first, end = np.searchsorted(self._kinds, [place, place + 1])
        return self.rows.slice(int(first), int(end - first))

    def with_kinds(self) -> pa.Table:
        """Return all rows, with their kind as last column."""
        names = pa.array([kind.value for kind in _KINDS], pa.string())
        return self.rows.append_column(row_kind_field(), names.take(from_numpy(self._kinds, pa.int64())))


def row_kind_field() -> pa.Field:
    return pa.field(ROW_KIND, pa.string(), nullable=False)


def _place_in_group(groups: Integers, added: npt.NDArray[np.bool_]) -> Integers:
    """Return, for each row, the number of earlier rows with the same key and direction."""
    marks = 2 * groups + added
    order = _order_by(marks)
    ordered = marks[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if len(ordered) else ordered
    places = np.empty(len(marks), dtype=np.int64)
    sizes = np.diff(starts, append=np.int64(len(marks)))
    places[order] = np.arange(len(marks), dtype=np.int64) - np.repeat(starts, sizes)
    return places


def _order_by(numbers: Integers) -> Integers:
    """Return the rows in the order of their numbers, which are not negative; equal ones stay in their order."""
    bits = max(len(numbers) - 1, 1).bit_length()
    if int(numbers.max(initial=0)).bit_length() + bits >= _WORD_BITS:
        return np.argsort(numbers, kind="stable")
    # Plain words sort several times faster than row numbers by another array.
    words = (numbers << bits) | np.arange(len(numbers), dtype=np.int64)
    words.sort()
    return words & ((1 << bits) - 1)
