"""Aggregates that users write: what they are handed, what they give, and how they are taken back."""

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from statebed.aggregates.aggregate import BoundAggregate
from statebed.aggregates.declaration import Retraction
from statebed.aggregates.functions import aggregate
from statebed.arrays.grouping import Grouping, group_rows
from statebed.errors import AggregateError, InputError

Arrays = tuple[pa.Array, ...]


def sums(groups: pa.Array, n_groups: int, values: pa.Array) -> pa.Array:
    numbers = np.zeros(n_groups, dtype=np.int64)
    np.add.at(numbers, np.asarray(groups), np.asarray(values.fill_null(0)))
    return pa.array(numbers)


class WeightedTotal:
    """Total and weight of integers, both exact; the result is total / weight."""

    state: str | pa.Schema = "total bigint, weight bigint"
    output: str | pa.DataType = "double"

    def accumulate(self, groups: pa.Array, n_groups: int, *inputs: pa.Array) -> Sequence[pa.Array]:
        values, weights = (np.asarray(column.fill_null(0)) for column in inputs)
        return sums(groups, n_groups, pa.array(values * weights)), sums(groups, n_groups, pa.array(weights))

    def retract(self, groups: pa.Array, n_groups: int, *inputs: pa.Array) -> Sequence[pa.Array]:
        return [pa.array(-np.asarray(column)) for column in self.accumulate(groups, n_groups, *inputs)]

    def merge(self, groups: pa.Array, n_groups: int, *state: pa.Array) -> Sequence[pa.Array]:
        return [sums(groups, n_groups, column) for column in state]

    def finish(self, *state: pa.Array) -> pa.Array:
        total, weight = (np.asarray(column).astype(np.float64) for column in state)
        return pa.array(total / np.where(weight == 0, 1.0, weight))


@dataclass
class Witness:
    """Joins texts, and remembers what it was handed."""

    state: str | pa.Schema = field(default_factory=lambda: pa.schema([("joined", pa.string())]))
    output: str | pa.DataType = field(default_factory=pa.string)
    handed: list[Any] = field(default_factory=list)

    def accumulate(self, groups: pa.Array, n_groups: int, *inputs: pa.Array) -> Sequence[pa.Array]:
        self.handed.append((groups.to_pylist(), n_groups, [column.to_pylist() for column in inputs]))
        return (self._joined(groups, n_groups, inputs[0]),)

    def merge(self, groups: pa.Array, n_groups: int, *state: pa.Array) -> Sequence[pa.Array]:
        self.handed.append((groups.to_pylist(), n_groups, [column.to_pylist() for column in state]))
        return (self._joined(groups, n_groups, state[0]),)

    def finish(self, *state: pa.Array) -> pa.Array:
        return state[0]

    def _joined(self, groups: pa.Array, n_groups: int, texts: pa.Array) -> pa.Array:
        parts: list[list[str]] = [[] for _ in range(n_groups)]
        for group, text in zip(groups.to_pylist(), texts.to_pylist(), strict=True):
            parts[group].append(str(text))
        return pa.array(["".join(one) for one in parts])


def grouping_of(groups: list[int]) -> Grouping:
    return group_rows(np.array(groups, dtype=np.int64), np.zeros(len(groups), dtype=np.uint64), [])


def bound_total(*, changelog: bool = False) -> BoundAggregate:
    return aggregate(WeightedTotal(), "x", "w").bind("a", input_types=(pa.int64(),) * 2, changelog=changelog)


ROWS = st.lists(
    st.tuples(st.integers(0, 2), st.none() | st.integers(-9, 9), st.none() | st.integers(1, 9), st.integers(-2, 3)),
    min_size=1,
    max_size=15,
)


@settings(deadline=None, max_examples=examples(40))
@given(rows=ROWS, data=st.data())
def test_partials_in_pieces_equal_the_answer_of_a_loop(rows: list[tuple[Any, ...]], data: st.DataObject) -> None:
    bound = bound_total(changelog=True)
    cut = data.draw(st.integers(0, len(rows)))
    folded, numbers = [], []
    for piece in (rows[:cut], rows[cut:]):
        columns = [pa.array([row[place] for row in piece], pa.int64()) for place in (1, 2)]
        weights = np.array([row[3] for row in piece], dtype=np.int64)
        folded.append(bound.accumulator.fold(columns, grouping_of([row[0] for row in piece]), weights))
        numbers += sorted({row[0] for row in piece})
    columns = [pa.concat_arrays(list(column)) for column in zip(*folded, strict=True)]
    merged = bound.accumulator.merge(columns, grouping_of(numbers))
    for array, one in zip(merged, bound.accumulator.partial_fields, strict=True):
        assert array.type == one.type
        array.validate(full=True)
    expected = []
    for group in sorted(set(numbers)):
        mine = [row[1:] for row in rows if row[0] == group and (row[1] is not None or row[2] is not None)]
        count = sum(often for _, _, often in mine)
        weight = sum((w or 0) * often for _, w, often in mine)
        total = sum((x or 0) * (w or 0) * often for x, w, often in mine)
        expected.append(total / (weight or 1) if count > 0 else None)
    assert bound.accumulator.finish(merged).to_pylist() == expected


def test_rows_are_handed_over_by_group_and_in_the_order_of_their_inputs() -> None:
    user = Witness()
    bound = aggregate(user, "x", "y").bind("a", input_types=(pa.string(), pa.float64()))
    texts = pa.array(["b", "a", None, None, "a", "c"])
    numbers = pa.array([1.0, float("nan"), 5.0, None, -0.0, None])
    partials = bound.accumulator.fold([texts, numbers], grouping_of([7, 7, 7, 7, 7, 2]))
    groups, n_groups, handed = user.handed[0]
    assert (groups, n_groups) == ([0, 1, 1, 1, 1], 2)
    assert repr(handed) == repr([["c", "a", "a", "b", None], [None, -0.0, float("nan"), 1.0, 5.0]])
    assert bound.accumulator.finish(partials).to_pylist() == ["c", "aabNone"]


def test_partials_are_handed_over_in_order_and_one_alone_is_left_as_it_is() -> None:
    user = Witness()
    bound = aggregate(user, "x").bind("a", input_types=(pa.string(),))
    partials = [pa.array([1, 1, None, 1]), pa.array(["z", "y", None, "q"])]
    merged = bound.accumulator.merge(partials, grouping_of([0, 0, 0, 1]))
    assert user.handed == [([0, 0, 1], 2, [["y", "z", "q"]])]
    assert [column.to_pylist() for column in merged] == [[2, 1], ["yz", "q"]]
    assert bound.accumulator.merge(merged, grouping_of([0, 1]))[1].to_pylist() == ["yz", "q"]
    assert len(user.handed) == 1


def test_a_group_without_a_row_to_hand_over_is_null() -> None:
    bound = bound_total()
    nothing = pa.nulls(2, pa.int64())
    partials = bound.accumulator.fold([nothing, nothing], grouping_of([0, 1]))
    assert [column.to_pylist() for column in partials] == [[None, None]] * 3
    assert bound.accumulator.finish(partials).to_pylist() == [None, None]
    assert [len(column) for column in bound.accumulator.fold([nothing[:0]] * 2, grouping_of([]))] == [0, 0, 0]


def test_without_retract_a_changelog_is_refused() -> None:
    bound = aggregate(Witness(), "x").bind("a", input_types=(pa.string(),))
    assert bound.retraction is Retraction.REFUSES
    assert bound_total().retraction is Retraction.INVERTIBLE
    with pytest.raises(InputError, match="does not support retractions") as caught:
        bound.retracting()
    assert "retract" in caught.value.fix


def failing(*_: Any) -> Any:
    raise KeyError("no such thing")


@pytest.mark.parametrize(
    ("method", "given", "what"),
    [
        ("accumulate", lambda *_: [pa.array([1])], "1 arrays instead of 2"),
        ("accumulate", lambda *_: [pa.array([1.5]), pa.array([1])], "values of double instead of 1 of int64"),
        ("accumulate", lambda *_: [pa.array([1, 2]), pa.array([1])], "2 values of int64 instead of 1"),
        ("accumulate", lambda *_: [np.array([1]), pa.array([1])], "ndarray"),
        ("accumulate", failing, "no such thing"),
        ("merge", lambda *_: [pa.array([1])], "1 arrays instead of 2"),
        ("finish", lambda *_: pa.array(["x"]), "values of string instead of 1 of double"),
    ],
)
def test_what_a_user_gives_is_checked(method: str, given: Callable[..., Any], what: str) -> None:
    user = WeightedTotal()
    setattr(user, method, given)
    bound = aggregate(user, "x", "w").bind("a", input_types=(pa.int64(), pa.int64()))
    ones = [pa.array([1, 1])] * 3
    calls: dict[str, Callable[[], Any]] = {
        "accumulate": lambda: bound.accumulator.fold([pa.array([1]), pa.array([2])], grouping_of([0])),
        "merge": lambda: bound.accumulator.merge(ones, grouping_of([0, 0])),
        "finish": lambda: bound.accumulator.finish([column.slice(1) for column in ones]),
    }
    with pytest.raises(AggregateError, match=what) as caught:
        calls[method]()
    assert caught.value.where.startswith(f"aggregate 'a', WeightedTotal.{method}")


def test_what_is_no_aggregate_is_refused_before_anything_runs() -> None:
    with pytest.raises(InputError, match="got the class WeightedTotal"):
        aggregate(WeightedTotal, "x")  # type: ignore[arg-type]  # the mistake
    with pytest.raises(
        InputError, match="object is not an aggregate: it lacks accumulate, merge, finish, state, output"
    ):
        aggregate(object(), "x")  # type: ignore[arg-type]  # the mistake
    with pytest.raises(InputError, match="has no input"):
        aggregate(WeightedTotal())
    with pytest.raises(InputError, match="has the unknown type 'integr'"):
        aggregate(replace(Witness(), state="n integr"), "x")
    with pytest.raises(InputError, match="called 'rows'"):
        aggregate(replace(Witness(), state="rows bigint"), "x")


def test_it_travels_and_its_description_knows_class_version_and_state() -> None:
    bound = bound_total()
    copy = pickle.loads(pickle.dumps(bound))  # noqa: S301 - our own bytes
    assert copy == bound
    partials = copy.accumulator.fold([pa.array([4]), pa.array([2])], grouping_of([0]))
    assert copy.accumulator.finish(partials).to_pylist() == [4.0]
    newer = WeightedTotal()
    newer.version = "2"  # type: ignore[attr-defined]  # optional
    other = aggregate(newer, "x", "w").bind("a", input_types=(pa.int64(),) * 2)
    assert other.description != bound.description
    assert "WeightedTotal" in bound.description
    assert bound.retracting().description != bound.description
