"""Exactly one report per subtask is accepted."""

import pickle

import msgspec
import pytest

from statebed.errors import CorruptObjectError, NondeterminismError, SubtaskError
from statebed.format import checkpoint_pb2 as pb
from statebed.spark.epoch.reports import accepted
from statebed.spark.plan.pieces import FAILED, OBSERVED, REPORT, SEEN, Piece
from statebed.subtasks import SubtaskReport


def piece(index: int, path: str = "a") -> Piece:
    report = SubtaskReport(
        operator_id="op",
        subtask_index=index,
        epoch=2,
        reference=pb.SubtaskReference(subtask_index=index, path=path),
        outbox=(),
        rows_in=1,
        rows_late=0,
        rows_out=0,
        state_rows=0,
        state_bytes=0,
        state_files=0,
        bytes_written=0,
    )
    return Piece(index, REPORT, report.to_bytes())


def test_reports_come_in_the_order_of_their_subtasks() -> None:
    reports = accepted([piece(1), piece(0)], operators={"op": "operator 'op'"}, parallelism=2).reports["op"]
    assert [report.subtask_index for report in reports] == [0, 1]


def test_two_equal_reports_of_a_subtask_count_as_one() -> None:
    assert len(accepted([piece(0), piece(0)], operators={"op": "operator 'op'"}, parallelism=1).reports["op"]) == 1


def test_p6_two_different_reports_of_a_subtask_are_nondeterminism() -> None:
    with pytest.raises(NondeterminismError, match="subtask 0") as caught:
        accepted([piece(0, "a"), piece(0, "b")], operators={"op": "operator 'op'"}, parallelism=1)
    assert "a and b" in caught.value.where


@pytest.mark.parametrize(("pieces", "parallelism"), [([piece(0)], 2), ([], 1), ([piece(0), piece(1)], 1)])
def test_a_subtask_that_is_missing_or_should_not_exist_is_an_error(pieces: list[Piece], parallelism: int) -> None:
    with pytest.raises(SubtaskError):
        accepted(pieces, operators={"op": "operator 'op'"}, parallelism=parallelism)


def test_what_a_subtask_raised_is_raised_with_all_its_parts() -> None:
    error = CorruptObjectError("flipped", where="file x", fix="restore it")
    shipped = Piece(0, FAILED, pickle.dumps(error))
    with pytest.raises(CorruptObjectError) as caught:
        accepted([shipped], operators={"op": "operator 'op'"}, parallelism=1)
    assert (caught.value.what, caught.value.where, caught.value.fix) == ("flipped", "file x", "restore it")


def test_the_greatest_event_time_at_a_watermark_is_taken_from_all_tasks() -> None:
    times = [Piece(0, OBSERVED, msgspec.msgpack.encode({"node": time})) for time in (-7, 3, 2)]
    taken = accepted([piece(0), *times], operators={"op": "operator 'op'"}, parallelism=1)
    assert (taken.observed_ms, taken.seen) == ({"node": 3}, {})


def test_the_greatest_event_time_of_a_source_is_taken_from_all_subtasks() -> None:
    seen = [
        Piece(index, SEEN, msgspec.msgpack.encode(times))
        for index, times in enumerate([{"rides": 5, "fares": 9}, {"rides": 7}])
    ]
    assert accepted([piece(0), *seen], operators={"op": "operator 'op'"}, parallelism=1).seen == {
        "rides": 7,
        "fares": 9,
    }


def test_nondeterminism_names_the_operator_as_the_user_wrote_it() -> None:
    label = "group_by(driver, tumbling window of 1 minute on ts).agg"
    with pytest.raises(NondeterminismError) as caught:
        accepted([piece(0, "a"), piece(0, "b")], operators={"op": label}, parallelism=1)
    assert caught.value.where.startswith(label)
    with pytest.raises(SubtaskError, match="subtask 1 of group_by") as missing:
        accepted([piece(0)], operators={"op": label}, parallelism=2)
    assert missing.value.where == label
