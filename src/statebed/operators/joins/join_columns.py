"""Columns of a join: those of a pair, those of the results, and how results are built.

Key columns come first, once, under the left input's names; then the other columns of the left input, then those of the
right. A column name that both inputs have gets the suffix of each side. A row without a partner has nulls for the other
side and its own key.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.columns import one_chunk
from statebed.arrays.mutable import taken
from statebed.errors import InputError
from statebed.format.stream_schema import Changes, Input
from statebed.operators.joins.join_type import JoinKind, JoinSide
from statebed.operators.keyed_rows import check_input

Integers = npt.NDArray[np.int64]

SUFFIXES = ("", "_right")
"""Default suffixes of column names that both sides have."""


class PairCondition(Protocol):
    """Condition on a pair in addition to equal keys: an expression over the columns of a pair, where null counts as
    false.
    """

    @property
    def text(self) -> str: ...

    @property
    def type(self) -> pa.DataType: ...

    @property
    def columns(self) -> frozenset[str]: ...

    def evaluate(self, batch: pa.Table) -> pa.Array: ...


@dataclass(frozen=True)
class JoinColumns:
    """Columns of one join."""

    left: Input
    right: Input
    how: JoinKind
    suffixes: tuple[str, str] = SUFFIXES
    more: tuple[pa.Field, ...] = ()
    """Result columns directly after the keys that belong to neither side."""

    def check(self, *, where: str, condition: PairCondition | None = None) -> None:
        """Raise InputError if the inputs, columns or condition do not fit together."""
        for side_input in (self.left, self.right):
            check_input(side_input, where=f"{where}, input {side_input.name!r}")
        if self.left.name == self.right.name:
            raise InputError(
                f"both inputs are named {self.left.name!r}",
                where=where,
                fix="use different names, such as left and right",
            )
        self._check_keys(where)
        names = self.pairs.names
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InputError(
                f"the columns {twice} would appear twice in the result with the suffixes {self.suffixes}",
                where=where,
                fix="use other suffixes, for example suffixes=('', '_right'), or rename a column",
            )
        if condition is not None and not pa.types.is_boolean(condition.type):
            raise InputError(
                f"the condition must be boolean, got {condition.text!r} of type {condition.type}",
                where=where,
                fix="write a comparison, or several combined with `and` and `or`",
            )

    def _check_keys(self, where: str) -> None:
        kinds = [[side.columns.field(key).type for key in side.keys] for side in (self.left, self.right)]
        if kinds[0] != kinds[1]:
            raise InputError(
                f"the keys {_described(self.left)} and {_described(self.right)} do not match",
                where=where,
                fix="name the same number of columns on both sides, and cast them to the same types first",
            )

    def check_append_only(self, *, where: str) -> None:
        """Raise InputError for changelog inputs, in joins whose results are final."""
        changing = [side.name for side in (self.left, self.right) if side.changes is Changes.CHANGELOG]
        if changing:
            raise InputError(
                f"the input {' and the input '.join(changing)} of the join is a changelog: emitted results may have to "
                "be retracted, but the join's results are final",
                where=where,
                fix="leave within=, window= and as_of= out: a join without them updates its results",
            )

    def side(self, side: JoinSide) -> Input:
        return self.left if side is JoinSide.LEFT else self.right

    @cached_property
    def names(self) -> Mapping[JoinSide, Mapping[str, str]]:
        """Column names of each side in a pair, by their names in the input; keys of the right have the left's names."""
        left = [name for name in self.left.columns.names if name not in self.left.keys]
        right = [name for name in self.right.columns.names if name not in self.right.keys]
        behind_keys = [field.name for field in self.more]
        taken = {*self.left.columns.names, *behind_keys}
        both = {name for name in right if name in taken}
        renamed = {
            JoinSide.LEFT: {name: name + self.suffixes[0] if name in both else name for name in left},
            JoinSide.RIGHT: {name: name + self.suffixes[1] if name in both else name for name in right},
        }
        keys = {JoinSide.LEFT: self.left.keys, JoinSide.RIGHT: self.right.keys}
        return {side: dict(zip(keys[side], self.left.keys, strict=True)) | renamed[side] for side in JoinSide}

    @cached_property
    def pairs(self) -> pa.Schema:
        """Columns of a pair, to which the condition applies."""
        fields = [*self._keys(), *self.more, *self._values(JoinSide.LEFT), *self._values(JoinSide.RIGHT)]
        return pa.schema(fields)

    @cached_property
    def results(self) -> pa.Schema:
        """Columns of the results."""
        if self.how.gives_pairs:
            return self.pairs
        values = [field for field in self.left.columns if field.name not in self.left.keys]
        return pa.schema([*self._keys(), *self.more, *values])

    def paired(
        self,
        left: pa.Table,
        left_at: Integers,
        right: pa.Table,
        right_at: Integers,
        more: Sequence[pa.Array] = (),
        *,
        only: frozenset[str] | None = None,
    ) -> pa.Table:
        """Return pairs of rows, with all columns or some."""
        at = {JoinSide.LEFT: left_at, JoinSide.RIGHT: right_at}
        tables = {JoinSide.LEFT: left, JoinSide.RIGHT: right}
        columns = {field.name: array for field, array in zip(self.more, more, strict=bool(more))}
        for side in (JoinSide.RIGHT, JoinSide.LEFT):
            for name, shown in self.names[side].items():
                if (only is None or shown in only) and not (side is JoinSide.RIGHT and name in self.right.keys):
                    columns[shown] = taken(one_chunk(tables[side][name]), at[side])
        fields = [field for field in self.pairs if field.name in columns]
        if not fields:  # a condition that uses no columns
            return pa.Table.from_arrays([pa.nulls(len(left_at))], names=[""])
        return pa.Table.from_arrays([columns[field.name] for field in fields], schema=pa.schema(fields))

    def alone(self, side: JoinSide, rows: pa.Table, at: Integers, more: Sequence[pa.Array] = ()) -> pa.Table:
        """Return rows of one side as results without a partner: padded with nulls, except in a semi or anti join."""
        shown = self.names[side] if self.how.gives_pairs else {name: name for name in self.left.columns.names}
        columns = {new: taken(one_chunk(rows[name]), at) for name, new in shown.items()}
        columns |= {field.name: array for field, array in zip(self.more, more, strict=True)}
        arrays = [
            columns[field.name] if field.name in columns else pa.nulls(len(at), field.type) for field in self.results
        ]
        return pa.Table.from_arrays(arrays, schema=self.results)

    def described(self) -> dict[str, object]:
        """Return the parts that go into the definition."""
        return {
            "how": self.how.value,
            "suffixes": list(self.suffixes),
            **{
                side.value: {
                    "columns": [[field.name, str(field.type)] for field in self.side(side).columns],
                    "keys": list(self.side(side).keys),
                    "changes": self.side(side).changes.value,
                }
                for side in JoinSide
            },
        }

    def _keys(self) -> list[pa.Field]:
        fields = [self.left.columns.field(key) for key in self.left.keys]
        others = [self.right.columns.field(key) for key in self.right.keys]
        return [
            field.with_nullable(field.nullable or other.nullable) for field, other in zip(fields, others, strict=True)
        ]

    def _values(self, side: JoinSide) -> list[pa.Field]:
        side_input, shown = self.side(side), self.names[side]
        extended = self.how.gives_unmatched(side.other)
        return [
            field.with_name(shown[field.name]).with_nullable(field.nullable or extended)
            for field in side_input.columns
            if field.name not in side_input.keys
        ]


def _described(input_: Input) -> str:
    return f"{input_.name} " + ", ".join(f"{key} {input_.columns.field(key).type}" for key in input_.keys)
