"""Specifications of replay, of publication, and of requests to the live run."""

import pytest

from statebed.errors import EpochNotRetainedError, InvalidNameError, ProtocolError, ReplayError, SavepointError
from statebed.format import checkpoint_pb2 as pb
from statebed.protocol import PublishStep, Replay, SinkPosition, decide_replay
from statebed.protocol.publication import common_epoch, decide_delivery, oldest_unpublished, pending_sinks
from statebed.protocol.requests import AddSavepoint, CleanUp, Compact, DropSavepoint, Stop, decide_request, next_pins

POSITION = pb.SourcePosition(
    kind="spark",
    query_id="q",
    batch_id=5,
    offsets=[pb.LogEntry(name="4", content=b"four"), pb.LogEntry(name="5", content=b"five")],
)


def replay(batch_id: int, offsets: bytes = b"", query_id: str = "q", position: pb.SourcePosition = POSITION) -> Replay:
    return decide_replay(position, query_id=query_id, batch_id=batch_id, offsets=offsets, committed={3: b"three"})


def test_the_batch_after_the_head_is_processed() -> None:
    assert replay(6, b"six") is Replay.PROCESS


@pytest.mark.parametrize(("batch", "offsets"), [(5, b"five"), (4, b"four"), (3, b"three")])
def test_a_committed_batch_with_the_same_offsets_is_only_published(batch: int, offsets: bytes) -> None:
    assert replay(batch, offsets) is Replay.ALREADY_COMMITTED


def test_p3_a_committed_batch_id_with_other_offsets_is_refused() -> None:
    with pytest.raises(ReplayError, match="other offsets"):
        replay(5, b"other")


def test_a_batch_older_than_what_is_retained_is_refused() -> None:
    with pytest.raises(ReplayError, match="older than anything"):
        replay(1, b"one")


def test_a_batch_beyond_the_next_is_refused() -> None:
    with pytest.raises(ReplayError, match="a batch in between is missing"):
        replay(7)


@pytest.mark.parametrize("batch", [5, 6])
def test_another_query_is_refused_even_for_the_next_batch(batch: int) -> None:
    with pytest.raises(ReplayError, match="query other"):
        replay(batch, b"five", query_id="other")


def test_a_state_without_batches_takes_batch_zero_and_no_other() -> None:
    assert replay(0, position=pb.SourcePosition()) is Replay.PROCESS
    with pytest.raises(ReplayError, match="no batch yet"):
        replay(1, position=pb.SourcePosition())


def test_a_state_that_another_kind_of_program_wrote_is_refused() -> None:
    with pytest.raises(ReplayError, match="'files'"):
        replay(0, position=pb.SourcePosition(kind="files"))


def test_a_sink_without_position_takes_everything() -> None:
    assert decide_delivery(None, run=1, epoch=2) is PublishStep.WRITE


@pytest.mark.parametrize(
    ("run", "epoch", "expected"),
    [
        (7, 9, PublishStep.WRITE),
        (8, 9, PublishStep.WRITE),
        (7, 8, PublishStep.SKIP),
        (7, 3, PublishStep.SKIP),
        (6, 9, PublishStep.REFUSE),
        (6, 8, PublishStep.REFUSE),
    ],
)
def test_p3_a_sink_skips_what_it_has_and_refuses_superseded_runs(run: int, epoch: int, expected: PublishStep) -> None:
    assert decide_delivery(SinkPosition(run=7, epoch=8), run=run, epoch=epoch) is expected


@pytest.mark.parametrize(
    ("epoch", "held", "lineage", "expected"),
    [
        (5, (5, 4, 3), (5, 4, 3), 5),  # level with the run
        (4, (4, 3), (5, 4, 3), 4),  # behind: 5 is pending
        (8, (8, 7, 3, 2), (5, 4, 3, 2), 3),  # on the branch that was left: back to where they parted
        (5, (5, 4, 3, 2), (8, 7, 3, 2), 3),  # as well when its number is below the run's
        (2, (2,), (9, 8, 7), 2),  # older than anything retained
        (8, (8, 7, 6, 5), (5,), 5),  # the run began at a savepoint of 5
        (3, (3,), (), 0),  # the run began from nothing
        (0, (), (4,), 0),  # opened, never written
    ],
)
def test_a_sink_and_a_lineage_share_what_leads_to_both(
    epoch: int, held: tuple[int, ...], lineage: tuple[int, ...], expected: int
) -> None:
    assert common_epoch(SinkPosition(run=1, epoch=epoch), held=held, lineage=lineage) == expected


def test_pending_are_the_sinks_without_marker_in_the_order_of_the_record() -> None:
    assert pending_sinks(["c", "a", "b"], ["a"]) == ["c", "b"]


def test_retention_waits_for_the_oldest_epoch_that_some_sink_lacks() -> None:
    assert oldest_unpublished({7: ["a"], 4: [], 5: ["b"]}) == 5
    assert oldest_unpublished({4: []}) is None


HEAD = pb.CheckpointMetadata(
    epoch=9, kind=pb.EPOCH, min_epoch=4, pins=[pb.Pin(savepoint="monday"), pb.Pin(savepoint="sunday")]
)


def savepoint(name: str, epoch: int | None = None) -> pb.Request:
    return pb.Request(savepoint=pb.SavepointRequest(name=name, epoch=epoch))


def drop(name: str) -> pb.Request:
    return pb.Request(drop_savepoint=pb.DropSavepointRequest(name=name))


def test_a_savepoint_is_of_the_newest_epoch_unless_one_is_named() -> None:
    assert decide_request(savepoint("new"), head=HEAD) == AddSavepoint("new", 9)
    assert decide_request(savepoint("new", 4), head=HEAD) == AddSavepoint("new", 4)
    start = pb.CheckpointMetadata(epoch=10, kind=pb.RUN_START, base=9, min_epoch=4)
    assert decide_request(savepoint("new"), head=start) == AddSavepoint("new", 9)


@pytest.mark.parametrize("epoch", [3, 10])
def test_a_savepoint_of_an_epoch_that_is_not_retained_is_refused(epoch: int) -> None:
    with pytest.raises(EpochNotRetainedError, match="4 to 9"):
        decide_request(savepoint("new", epoch), head=HEAD)


def test_a_savepoint_before_the_first_epoch_is_refused() -> None:
    with pytest.raises(EpochNotRetainedError, match="no epoch to save"):
        decide_request(savepoint("new"), head=pb.CheckpointMetadata(epoch=1, kind=pb.RUN_START, min_epoch=1))


def test_a_name_that_is_taken_or_about_to_be_is_refused() -> None:
    with pytest.raises(SavepointError, match="already"):
        decide_request(savepoint("monday"), head=HEAD)
    with pytest.raises(SavepointError, match="already"):
        decide_request(savepoint("new"), head=HEAD, waiting=[AddSavepoint("new", 5)])


def test_a_savepoint_that_is_not_there_or_about_to_go_cannot_be_dropped() -> None:
    assert decide_request(drop("monday"), head=HEAD) == DropSavepoint("monday")
    for name, waiting in (("tuesday", []), ("monday", [DropSavepoint("monday")])):
        with pytest.raises(SavepointError, match="no savepoint"):
            decide_request(drop(name), head=HEAD, waiting=waiting)


@pytest.mark.parametrize("name", ["", "a/b", "..", "x" * 200])
def test_a_name_that_cannot_be_an_object_name_is_refused(name: str) -> None:
    for request in (savepoint(name), drop(name)):
        with pytest.raises(InvalidNameError):
            decide_request(request, head=HEAD)


def test_stop_and_collect_are_always_granted_and_the_unknown_never() -> None:
    assert decide_request(pb.Request(stop=pb.StopRequest(drain=True)), head=HEAD) == Stop(drain=True)
    assert decide_request(pb.Request(cleanup=pb.CleanupRequest()), head=HEAD) == CleanUp()
    assert decide_request(pb.Request(compact=pb.CompactRequest()), head=HEAD) == Compact()
    with pytest.raises(ProtocolError, match="does not know the requested action"):
        decide_request(pb.Request(), head=HEAD)


def test_the_next_pins_are_the_heads_less_the_dropped_and_the_added() -> None:
    added = [pb.Pin(savepoint="new")]
    pins = next_pins(HEAD.pins, added=added, effects=[DropSavepoint("monday"), AddSavepoint("new", 9)])
    assert [pin.savepoint for pin in pins] == ["sunday", "new"]
