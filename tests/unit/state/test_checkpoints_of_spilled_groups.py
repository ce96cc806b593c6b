"""Spilled groups of appended rows become checkpoint files unread, and the files do not tell what was spilled."""

import datetime as dt
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from effort import diagonals, examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unit.state.segment_rows import opened_tiers

from statebed.arrays.columns import from_numpy
from statebed.format.ranges import WHOLE_SPACE
from statebed.format.schema import TIMESTAMP
from statebed.state import Combine, TimeKeyedView, timestamp_table_config
from statebed.state.memory.controller import Purpose
from statebed.state.tiers.shared_tiers import Tiers
from statebed.state.tiers.tier import Tier
from statebed.state.time_keyed.files import file_bytes
from statebed.storage import MemoryStore

COLUMNS = pa.schema([("rider", pa.int64()), ("fare", pa.int64()), ("city", pa.string())])
BUDGET = 1 << 20
SECOND = 1_000_000


def rides(numbers: np.ndarray) -> pa.Table:
    return pa.table(
        {
            "rider": from_numpy(numbers % 1_000, pa.int64()),
            "_time": from_numpy(numbers % 50 * SECOND + numbers // 50, TIMESTAMP),
            "fare": from_numpy(numbers, pa.int64()),
            "city": pa.array([f"city {number % 97:>20}" for number in numbers.tolist()]),
        }
    )


def rides_view(tiers: Tiers, *, generational: bool = False, combine: Combine | None = None) -> TimeKeyedView:
    config = timestamp_table_config(
        "rides",
        "",
        dt.timedelta(days=1),
        generational,
        COLUMNS,
        keys=["rider"],
        bin_width=dt.timedelta(seconds=10),
    )
    return TimeKeyedView(config, owned=WHOLE_SPACE, store=MemoryStore(), tiers=tiers, combine=combine)


def stored(view: TimeKeyedView) -> list[tuple[str, int]]:
    """Names (by digest) and rows of the files that a checkpoint adds."""
    before = {file.path for file in view.metadata().files}
    for upload in view.checkpoint(lambda digest: digest, max_files=1_000):
        upload.content()
        upload.on_stored()
    return [(file.path, file.rows) for file in view.metadata().files if file.path not in before]


@pytest.mark.parametrize(("rows_at_once", "generational"), diagonals([200, 60_000], [False, True]))
def test_groups_that_were_spilled_whole_become_files_of_the_checkpoint_unread(
    tmp_path: Path, rows_at_once: int, generational: bool
) -> None:
    with opened_tiers(tmp_path, budget=BUDGET) as tiers:
        view = rides_view(tiers, generational=generational)
        for start in range(0, 60_000, rows_at_once):
            view.append(rides(np.arange(start, start + rows_at_once)))
        groups = [group for group in view._state.buffer.groups if not group.is_empty]
        spilled = [group for group in groups if len(group.runs) == 1 and group.runs[0].tier is Tier.DISK]
        assert len(spilled) >= 5, "nothing is shown if little was spilled"
        assert all(group.complete for group in spilled)
        waiting = sum(group.rows for group in groups if group not in spilled)
        sizes = [group.runs[0].bytes_by_tier()[Tier.DISK] for group in spilled]
        loads = view.statistics().loads

        files = stored(view)

        assert sum(rows for _, rows in files) == 60_000
        done = view.statistics()
        # Writing needs memory, so that more groups may leave it meanwhile.
        assert done.encoded_rows <= waiting, "a row of a spilled group was encoded again"
        assert done.reused_bytes >= sum(sizes)
        assert done.loads == loads, "a spilled file was decoded"
        assert view.read().num_rows == 60_000


def test_rows_that_windows_combine_are_uploaded_unread_where_none_repeats(tmp_path: Path) -> None:
    def refused(rows: pa.Table) -> pa.Table:
        raise AssertionError(f"{rows.num_rows} rows were combined, though no two have one key and time")

    with opened_tiers(tmp_path, budget=BUDGET) as tiers:
        view = rides_view(tiers, combine=refused)
        view.append(rides(np.arange(40_000)))
        view.flush()
        loads = view.statistics().loads
        assert len(stored(view)) > 3
        done = view.statistics()
        assert (done.encoded_rows, done.loads) == (0, loads)


def test_hidden_rows_of_a_spilled_group_are_left_out_of_its_file(tmp_path: Path) -> None:
    with opened_tiers(tmp_path, budget=BUDGET) as tiers:
        view = rides_view(tiers)
        view.append(rides(np.arange(30_000)))
        view.flush()
        view.delete_times(0, 5 * SECOND)
        files = stored(view)
        assert sum(rows for _, rows in files) == 27_000
        assert view.statistics().encoded_rows > 0
        assert view.read().num_rows == 27_000


steps = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 400)),
    st.tuples(st.just("append"), st.integers(4_000, 12_000)),
    st.tuples(st.just("append again"), st.integers(1, 6_000)),
    st.tuples(st.just("delete times"), st.integers(0, 40)),
    st.tuples(st.just("delete keys"), st.integers(0, 900)),
    st.tuples(st.just("checkpoint"), st.just(0)),
)


def play(tiers: Tiers, script: list[tuple[str, int]], *, pressure: bool, generational: bool) -> list[object]:
    """Return what each checkpoint of the script stores; under pressure, memory is short and rows are reordered."""
    dice = random.Random(7)
    view = rides_view(tiers, generational=generational)
    seen: list[object] = []
    appended = 0
    for verb, number in [*script, ("checkpoint", 0)]:
        if verb in {"append", "append again"}:
            start = appended if verb == "append" else 0
            rows = rides(np.arange(start, start + number))
            appended = max(appended, start + number)
            if pressure:
                rows = rows.take(pa.array(dice.sample(range(number), number)))
            view.append(rows)
        elif verb == "delete times":
            view.delete_times(number * SECOND, (number + 10) * SECOND)
        elif verb == "delete keys":
            view.delete(pa.table({"rider": list(range(number, number + 30))}))
        else:
            files = stored(view)
            part = view.metadata()
            seen.append((files, [file.applied_sequence for file in part.files], len(part.tombstones)))
        if pressure:
            with tiers.memory.reserve("others", Purpose.READS, dice.choice([0, 1, 1]) * tiers.memory.budget):
                pass  # whatever can leave memory does
    view.release()
    return seen


@settings(max_examples=examples(15), suppress_health_check=list(HealthCheck))
@given(script=st.lists(steps, min_size=2, max_size=12), generational=st.booleans())
def test_p6_checkpoint_files_are_equal_with_and_without_memory_pressure(
    tmp_path_factory: pytest.TempPathFactory, script: list[tuple[str, int]], generational: bool
) -> None:
    stored_files = []
    for pressure in (False, True):
        # The size of files follows from the budget, so that is the same; something else takes most of the memory.
        with (
            opened_tiers(tmp_path_factory.mktemp("tiers"), budget=BUDGET) as tiers,
            tiers.memory.reserve("others", Purpose.READS, BUDGET * 8 // 10 if pressure else 0),
        ):
            assert file_bytes(tiers) == BUDGET // 4
            stored_files.append(play(tiers, script, pressure=pressure, generational=generational))
    assert stored_files[0] == stored_files[1]
