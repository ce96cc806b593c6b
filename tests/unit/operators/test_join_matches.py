"""A join by time that has seen rows of both streams come and go without a pair says so; before that it is silent."""

import dataclasses
import json

import pytest

from statebed.format import checkpoint_pb2 as pb
from statebed.operators.joins.matches import MIN_ROWS, added_up, entry_warning, no_pairs_warning
from statebed.operators.window_definition import tumbling

MINUTE = 60_000_000
NOON = 1_767_268_800_000_000
TEN_MINUTES_AFTER = json.dumps({"kind": "interval_join", "lower_us": 0, "upper_us": 10 * MINUTE})
SAME_MINUTE = json.dumps({"kind": "window_join", "window": tumbling("1 minute").as_data()})


def times(first_minute: int, last_minute: int, rows: int = MIN_ROWS) -> pb.InputTimes:
    return pb.InputTimes(rows=rows, first_us=NOON + first_minute * MINUTE, last_us=NOON + last_minute * MINUTE)


def matches(left: pb.InputTimes, right: pb.InputTimes, pairs: int = 0) -> pb.JoinMatches:
    return pb.JoinMatches(pairs=pairs, left=left, right=right)


@dataclasses.dataclass(frozen=True)
class Case:
    found: pb.JoinMatches
    watermark: int | None
    definition: str = TEN_MINUTES_AFTER


SILENT = {
    "a pair was found": Case(matches(times(0, 60), times(0, 60), pairs=1), 60),
    "one side has no rows": Case(matches(times(0, 60), pb.InputTimes()), 60),
    "there is no watermark": Case(matches(times(0, 60), times(0, 60)), None),
    "left rows still wait for partners": Case(matches(times(0, 60), times(0, 5)), 5),
    "right rows still wait for partners": Case(matches(times(0, 60), times(70, 75)), 60),
    "few rows, whose times do not exclude a pair": Case(matches(times(0, 60, rows=3), times(0, 60, rows=3)), 50),
    "windows are open": Case(matches(times(0, 0), times(0, 0)), 0, SAME_MINUTE),
}
LOUD = {
    "rows of both sides have left": Case(matches(times(0, 60), times(0, 60)), 50),
    "a source that is idle ended before the other began": Case(
        matches(times(0, 60, rows=3), times(-90, -70, rows=3)), 60
    ),
    "windows have closed": Case(matches(times(0, 60), times(0, 60)), 50, SAME_MINUTE),
}


def warning(case: Case) -> str | None:
    watermark_us = None if case.watermark is None else NOON + case.watermark * MINUTE
    return no_pairs_warning(case.definition, case.found, watermark_us)


@pytest.mark.parametrize("case", SILENT.values(), ids=SILENT)
def test_a_join_that_may_still_match_is_not_warned_of(case: Case) -> None:
    assert warning(case) is None


@pytest.mark.parametrize("case", LOUD.values(), ids=LOUD)
def test_a_join_that_let_rows_of_both_sides_go_without_a_pair_is_warned_of(case: Case) -> None:
    text = warning(case)
    assert text is not None
    assert "no pair" in text


def test_the_warning_names_both_ranges_the_watermark_and_the_interval() -> None:
    text = warning(LOUD["rows of both sides have left"]) or ""
    assert "left: 100 rows from 2026-01-01 12:00:00 to 2026-01-01 13:00:00" in text
    assert "right: 100 rows from" in text
    assert "watermark is at 2026-01-01 12:50:00" in text
    assert "the right row is 0 seconds to 10 minutes after the left one" in text
    assert "these times exclude a pair" not in text
    assert "these times exclude a pair" in (warning(LOUD["a source that is idle ended before the other began"]) or "")


def test_subtasks_and_epochs_add_up() -> None:
    total = added_up(
        [matches(times(0, 5), pb.InputTimes()), matches(times(3, 9, rows=1), times(1, 1, rows=2), pairs=4)]
    )
    assert total == matches(times(0, 9, rows=101), times(1, 1, rows=2), pairs=4)
    assert added_up([]) is None


def test_a_record_of_an_earlier_version_has_no_warning() -> None:
    assert entry_warning(pb.OperatorEntry(definition=TEN_MINUTES_AFTER)) is None


def test_the_watermark_of_a_record_decides() -> None:
    found = LOUD["rows of both sides have left"].found
    entry = pb.OperatorEntry(definition=TEN_MINUTES_AFTER, matches=found)
    assert entry_warning(entry) is None
    entry.inputs.add(input="left", watermark_us=NOON + 50 * MINUTE)
    assert "no pair" in (entry_warning(entry) or "")
