"""A head record that was committed but is missing is never stepped over: its number is not free."""

import pytest
from unit.checkpoint.place import Place, TableSink

from statebed.checkpoint import DamagePolicy, Publisher, RollbackPolicy
from statebed.errors import CorruptRecordError, RollbackError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.sealed import seal


def published(place: Place, table: TableSink, epochs: int) -> int:
    """Commit and publish this many epochs; the number of the last one."""
    run = place.open()
    publisher = Publisher(run, [table])
    publisher.open()
    for _ in range(epochs):
        place.commit(run, sinks=("table",))
        publisher.publish_pending()
    return int(run.head.epoch)


def lose(place: Place, *numbers: int) -> None:
    for number in numbers:
        place.store.delete(names.record(number))


def test_p7_a_lost_head_is_refused_because_its_published_marker_proves_it(place: Place, table: TableSink) -> None:
    head = published(place, table, 3)
    lose(place, head)
    before = place.contents()
    with pytest.raises(CorruptRecordError, match=f"the newest record, {head}, was committed but is missing") as refused:
        place.open()
    assert "published-table" in refused.value.where
    assert place.contents() == before


def test_p7_several_lost_records_are_refused_though_an_older_one_can_be_read(place: Place, table: TableSink) -> None:
    head = published(place, table, 4)
    lose(place, head, head - 1)
    with pytest.raises(CorruptRecordError, match=f"record, {head}, was committed but is missing"):
        place.open()


def test_p7_a_job_without_any_record_is_refused_when_markers_prove_that_it_ran(place: Place, table: TableSink) -> None:
    head = published(place, table, 2)
    lose(place, *range(1, head + 1))
    with pytest.raises(CorruptRecordError, match="no record of this job can be read"):
        place.open()


def test_p7_an_answered_request_proves_a_lost_head(place: Place) -> None:
    run = place.open()
    request = pb.Request(request_id="r1", cleanup=pb.CleanupRequest())
    place.store.put_if_absent(names.request("r1"), seal(request))
    run.serve_requests()
    head = place.commit(run).epoch
    assert place.store.head(names.answer("r1")) is not None
    lose(place, head)
    with pytest.raises(CorruptRecordError, match=r"requests/r1\.answer was written after it"):
        place.open()


def test_p7_files_of_a_compaction_prove_a_lost_run_start(place: Place) -> None:
    place.commit(place.open())
    run = place.open()
    place.store.put(names.compacted_file(run.number, "op", "t", 0, "0" * 32), b"rows")
    lose(place, run.number)
    with pytest.raises(CorruptRecordError, match=f"record, {run.number}, was committed but is missing"):
        place.open()


def test_an_epoch_that_was_begun_and_never_committed_is_no_lost_record(place: Place, table: TableSink) -> None:
    head = published(place, table, 2)
    place.subtask(place.store, head + 1, 0, "begun")
    assert place.open().number == head + 1


@pytest.mark.parametrize("count", [1, 2])
def test_falling_back_fills_the_lost_numbers_and_takes_the_sink_back(
    place: Place, table: TableSink, count: int
) -> None:
    head = published(place, table, 4)
    lost = range(head - count + 1, head + 1)
    lose(place, *lost)
    with pytest.raises(RollbackError, match=f"abandon epochs {lost[0]} to {head}"):
        place.open(damage=DamagePolicy.FALL_BACK)
    run = place.open(damage=DamagePolicy.FALL_BACK, rollback=RollbackPolicy.ALLOW)
    assert run.number == head
    Publisher(run, [table]).open()
    assert max(table.rows) == lost[0] - 1
    place.commit(run, "again", sinks=("table",))
    run.clean_up()
    later = place.open()
    Publisher(later, [table]).open()
    assert table.rows[head + 1] == "again"
    assert place.store.head(names.published(head, "table")) is None


def test_a_process_that_dies_while_it_fills_lost_numbers_leaves_the_refusal_standing(
    place: Place, table: TableSink
) -> None:
    head = published(place, table, 4)
    lose(place, head, head - 1)
    run = place.open(damage=DamagePolicy.FALL_BACK, rollback=RollbackPolicy.ALLOW)
    assert run.number == head
    lose(place, head)
    place.store.put(names.published(head, "table"), b"marker of the lost epoch")
    with pytest.raises(CorruptRecordError, match="was committed but is missing"):
        place.open()
    assert place.open(damage=DamagePolicy.FALL_BACK, rollback=RollbackPolicy.ALLOW).number == head
