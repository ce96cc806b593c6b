"""State that earlier versions stored in another layout is taken over: the job continues as if it had started today."""

import collections
from collections.abc import Callable
from functools import cache

import pyarrow as pa
import pytest
from effort import diagonals
from unit.operators.earlier_flows import EPOCHS, FIRST_EPOCHS, FLOWS, PARALLELISM, feed, stored

from statebed import testing
from statebed.arrays.columns import one_chunk
from statebed.arrays.key_hash import normalise_key
from statebed.flow import Flow
from statebed.operators.windows import large_groups

Counted = collections.Counter[str]


def changes_of(run: testing.TestRun, *, first: int) -> Counted:
    """Return the consolidated output of the epochs from `first` on."""
    rows = run.changes("result")
    plain = pa.table({name: normalise_key(one_chunk(rows[name])) for name in rows.column_names})
    found: Counted = collections.Counter()
    for row in plain.to_pylist():
        epoch, weight = row.pop("epoch"), row.pop("_weight", 1)
        if epoch >= first:
            found[repr(row)] += weight
    return collections.Counter({row: count for row, count in found.items() if count})


@cache
def started_today(flow: Callable[[str], Flow]) -> tuple[Counted, object]:
    """Return the changes of the last epochs and the state of a job that ran all epochs in today's layout."""
    with testing.run(flow("today")) as run:
        feed(run, 0, EPOCHS)
        return changes_of(run, first=FIRST_EPOCHS), run.state_rows("result")


ALIKE = (
    "join_inner",
    "join_left",
    "aggregates",
    "collected_of_changes_event_time",
    "sessions",
    "sessions_by_start_early",
)
"""Flows whose state has the same tables as that of another one."""
TIMED = [name for name in FLOWS if "_time" in name and name not in ALIKE]
UNTIMED = [name for name in FLOWS if "_time" not in name and name not in ALIKE]


@pytest.mark.parametrize(
    ("name", "parallelism"),
    [
        *diagonals(TIMED, [1, 3]),
        *diagonals(UNTIMED, [1, PARALLELISM, 3]),
        *diagonals(ALIKE, [1, PARALLELISM, 3], kept=0),
    ],
)
def test_a_job_goes_on_from_state_of_an_earlier_version(
    name: str, parallelism: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name.startswith("many_values"):
        monkeypatch.setattr(large_groups, "LISTED_ENTRIES", 5)
    changes, state = started_today(FLOWS[name])
    assert changes
    with testing.run(FLOWS[name](name), parallelism=parallelism, store=stored(name)) as run:
        feed(run, FIRST_EPOCHS, EPOCHS - 1)
        run.crash()
        feed(run, EPOCHS - 1, EPOCHS)
        assert changes_of(run, first=0) == changes
        assert run.state_rows("result") == state
