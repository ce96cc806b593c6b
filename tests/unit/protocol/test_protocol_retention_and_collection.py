"""Specifications of what is kept, what may be deleted, and in which order."""

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebed.errors import InputError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.protocol import EpochDraft, Licence, Retention
from statebed.protocol.cleanup import (
    RUNS_KEPT,
    deletion_order,
    find_licence,
    is_garbage,
    protecting_pins,
    protecting_records,
    records_to_delete,
    runs_to_delete,
)
from statebed.protocol.records import Commit, build_epoch
from statebed.protocol.retention import LineageEpoch, next_min_epoch

DATA = names.data_file(5, "op", "t", 0, "d")


def links(*epochs: int) -> list[LineageEpoch]:
    return [LineageEpoch(epoch, finish_time_us=epoch * 10) for epoch in epochs]


def next_min(
    *epochs: int, keep: int = 3, current: int = 1, unpublished: int | None = None, max_age_us: int | None = None
) -> int:
    return next_min_epoch(
        links(*epochs),
        policy=Retention(epochs=keep, max_age=None if max_age_us is None else dt.timedelta(microseconds=max_age_us)),
        now_us=max(epochs, default=0) * 10,
        current=current,
        oldest_unpublished=unpublished,
    )


def test_retention_keeps_the_last_epochs_of_the_lineage() -> None:
    assert next_min(2, 3, 4, 5, 6) == 4


def test_retention_does_not_count_run_starts_or_abandoned_epochs() -> None:
    # 5 to 50 are run_starts of a crash loop, or were abandoned by a fork to 4: history stays.
    assert next_min(2, 3, 4, 51) == 3


def test_a_lineage_shorter_than_the_policy_drops_nothing() -> None:
    assert next_min(51, current=31) == 31
    assert next_min(51, 52, current=31) == 31
    assert next_min(51, 52, 53, current=31) == 51


def test_retention_never_falls() -> None:
    assert next_min(2, 3, 4, 5, current=5) == 5


def test_retention_never_passes_an_epoch_that_a_sink_waits_for() -> None:
    assert next_min(2, 3, 4, 5, 6, unpublished=3) == 3
    assert next_min(2, 3, 4, 5, 6, unpublished=6) == 4


def test_retention_by_age_keeps_more_never_less() -> None:
    assert next_min(2, 3, 4, 5, 6, 7, max_age_us=40) == 3
    assert next_min(2, 3, 4, 5, 6, 7, max_age_us=0) == 5


@given(
    epochs=st.sets(st.integers(1, 60), min_size=1),
    keep=st.integers(1, 5),
    current=st.integers(1, 60),
    unpublished=st.none() | st.integers(1, 60),
)
def test_p5_retention_keeps_enough_whatever_the_chain(
    epochs: set[int], keep: int, current: int, unpublished: int | None
) -> None:
    chain = sorted(epochs)
    found = next_min(*chain, keep=keep, current=current, unpublished=unpublished)
    assert found >= current
    if found > current:
        assert sum(epoch >= found for epoch in chain) >= keep
        assert unpublished is None or found <= unpublished


@pytest.mark.parametrize(
    "bad", [{"epochs": 0}, {"reader_grace": dt.timedelta(microseconds=-1)}, {"max_age": "-1 day"}, {"max_age": "soon"}]
)
def test_retention_that_would_keep_nothing_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Retention(**bad)


def test_retention_takes_durations() -> None:
    retention = Retention(max_age="2 days", reader_grace=dt.timedelta(seconds=5))
    assert (retention.max_age_us, retention.reader_grace_us) == (2 * 86_400_000_000, 5_000_000)
    assert retention == Retention(max_age="48 hours", reader_grace="5 s")


def record(epoch: int, *, finished: int, min_epoch: int, pins: tuple[str, ...] = ()) -> pb.CheckpointMetadata:
    return pb.CheckpointMetadata(
        epoch=epoch, finish_time_us=finished, min_epoch=min_epoch, pins=[pb.Pin(path=path) for path in pins]
    )


LOG = [
    record(4, finished=40, min_epoch=2, pins=("old",)),
    record(5, finished=50, min_epoch=3, pins=("kept",)),
    record(6, finished=60, min_epoch=5, pins=("new",)),
]


def test_licence_is_the_newest_record_whose_grace_is_over() -> None:
    assert find_licence(LOG, now_us=60, grace_us=10) == Licence(granted_by=5, min_epoch=3)
    assert find_licence(LOG, now_us=60, grace_us=0) == Licence(granted_by=6, min_epoch=5)


def test_no_licence_before_any_grace_is_over() -> None:
    assert find_licence(LOG, now_us=45, grace_us=10) is None
    assert find_licence([], now_us=45, grace_us=0) is None


def test_records_leave_in_ascending_order_and_never_from_min_epoch_on() -> None:
    assert records_to_delete([7, 2, 3, 1, 4], licence=Licence(9, min_epoch=4), head=9) == [1, 2, 3]


@pytest.mark.parametrize("head", [3, 4, 5])
def test_the_head_and_its_predecessor_never_leave(head: int) -> None:
    doomed = records_to_delete(range(1, head + 1), licence=Licence(head, min_epoch=head + 1), head=head)
    assert head not in doomed
    assert head - 1 not in doomed


def test_what_stays_protects_from_min_epoch_on_and_pins_from_the_licence_on() -> None:
    licence = Licence(granted_by=5, min_epoch=5)
    assert [kept.epoch for kept in protecting_records(LOG, licence=licence)] == [5, 6]
    assert set(protecting_pins(LOG, licence=licence)) == {"kept", "new"}


def test_a_protected_object_is_never_garbage() -> None:
    assert not is_garbage(DATA, protected={DATA}, head=9, run=1)


@pytest.mark.parametrize(
    "path",
    [
        DATA,
        names.operator_metadata(5, "op", 0, "d"),
        names.outbox_file(5, "op", "", 0, "d"),
        names.outbox_file(5, "op", "late", 0, "d"),
        names.source_log(5, "d"),
        names.published(5, "out"),
        names.savepoint(5, "monday", "d"),
    ],
)
def test_an_unprotected_object_is_garbage_once_the_record_of_its_epoch_exists(path: str) -> None:
    assert is_garbage(path, protected=(), head=5, run=1)
    assert not is_garbage(path, protected=(), head=4, run=1), "its epoch may be in the making"


def test_records_are_not_judged_as_objects() -> None:
    assert not is_garbage(names.record(1), protected=(), head=9, run=1)


@pytest.mark.parametrize(("run", "expected"), [(6, False), (7, True), (8, True)])
def test_compactions_of_older_runs_and_forgotten_own_ones_are_garbage_newer_runs_are_not(
    run: int, expected: bool
) -> None:
    path = names.compacted_file(7, "op", "t", 0, "d")
    assert is_garbage(path, protected=(), head=99, run=run) is expected


def test_a_compaction_in_flight_is_garbage_only_to_newer_runs() -> None:
    path = names.compacted_file(7, "op", "t", 0, "d")
    assert not is_garbage(path, protected=(), head=99, run=7, in_flight={path})
    assert is_garbage(path, protected=(), head=99, run=8, in_flight={path})


@pytest.mark.parametrize(
    "path", [names.request("r"), names.answer("r"), "spark/000000000001/offsets/0", "notes.txt", "checkpoints/x/y"]
)
def test_what_the_collector_does_not_know_it_leaves(path: str) -> None:
    assert not is_garbage(path, protected=(), head=99, run=99)


def test_data_leaves_before_the_metadata_that_names_it() -> None:
    assert deletion_order(["a.metadata", "b", "a", "b"], metadata={"a.metadata"}) == ["a", "b", "a.metadata"]


def test_ends_of_runs_leave_when_their_records_have_left_and_many_newer_runs_exist() -> None:
    runs = list(range(10, 10 + 2 * RUNS_KEPT))
    kept = [pb.CheckpointMetadata(epoch=900, run=runs[-1])]
    assert runs_to_delete(runs, retained=kept) == set(runs[:RUNS_KEPT])
    older = [pb.CheckpointMetadata(epoch=17, run=15), *kept]
    assert runs_to_delete(runs, retained=older) == {10, 11, 12, 13, 14}
    assert runs_to_delete(runs[:RUNS_KEPT], retained=kept) == set()
    assert runs_to_delete(runs, retained=[]) == set()


# ---- clocks that jump ------------------------------------------------------------------------------------------


def test_an_epoch_never_ends_before_it_began() -> None:
    draft = EpochDraft(operators=[], start_time_us=5_000)
    commit = Commit(nonce="n", now_us=3_000, written_by="test")
    record = build_epoch(head=pb.CheckpointMetadata(epoch=1), draft=draft, min_epoch=1, pins=[], commit=commit)
    assert (record.start_time_us, record.finish_time_us) == (3_000, 3_000)


def test_p5_an_epoch_from_the_future_is_as_old_as_the_one_after_it() -> None:
    future = 4_000_000_000
    chain = [
        LineageEpoch(1, 100),
        LineageEpoch(2, future),
        LineageEpoch(3, 200),
        LineageEpoch(4, 300),
        LineageEpoch(5, 9_000),
    ]
    policy = Retention(epochs=1, max_age="1 ms")
    assert next_min_epoch(chain, policy=policy, now_us=9_000, current=1, oldest_unpublished=None) == 5
    kept = Retention(epochs=1, max_age="8900 us")
    assert next_min_epoch(chain, policy=kept, now_us=9_000, current=1, oldest_unpublished=None) == 1


def test_p5_records_from_the_future_do_not_hold_collection_up_once_the_clock_is_right() -> None:
    records = [
        pb.CheckpointMetadata(epoch=1, min_epoch=1, finish_time_us=100),
        pb.CheckpointMetadata(epoch=2, min_epoch=2, finish_time_us=4_000_000_000),
        pb.CheckpointMetadata(epoch=3, min_epoch=3, finish_time_us=4_000_000_001),
        pb.CheckpointMetadata(epoch=4, min_epoch=4, finish_time_us=200),
        pb.CheckpointMetadata(epoch=5, min_epoch=5, finish_time_us=1_000),
    ]
    assert find_licence(records, now_us=250, grace_us=50) == Licence(granted_by=4, min_epoch=4)
    assert find_licence(records[:4], now_us=210, grace_us=50) == Licence(granted_by=1, min_epoch=1)
    assert find_licence(records[:3], now_us=150, grace_us=50) == Licence(granted_by=1, min_epoch=1)
