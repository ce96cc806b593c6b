"""Spark's checkpoint folder: which positions it can be built from, and which logs it needs."""

import pytest

from statebed.errors import ReplayError
from statebed.format import checkpoint_pb2 as pb
from statebed.protocol.projection import check_position, needed_source_logs


def position(batch: int = 3) -> pb.SourcePosition:
    return pb.SourcePosition(
        kind="spark",
        query_id="q-1",
        batch_id=batch,
        offsets=[pb.LogEntry(name=str(n), content=b"o%d" % n) for n in (batch - 1, batch) if n >= 0],
    )


@pytest.mark.parametrize("good", [pb.SourcePosition(), position(0), position(1), position(7)])
def test_a_position_before_the_first_batch_or_with_both_offsets_serves(good: pb.SourcePosition) -> None:
    check_position(good, where="here")


def test_a_position_of_another_program_or_without_offsets_is_refused() -> None:
    with pytest.raises(ReplayError, match="a program of kind 'mine'") as caught:
        check_position(pb.SourcePosition(kind="mine"), where="here")
    assert caught.value.where == "here"
    for lost in (0, 1):
        cut = position()
        del cut.offsets[lost]
        with pytest.raises(ReplayError, match="lacks the offsets of batch 3 or of the one before"):
            check_position(cut, where="here")


def test_of_a_source_log_the_newest_compacted_file_and_what_follows_are_needed() -> None:
    names = [f"sources/0/{n}" for n in range(9)] + ["sources/0/9.compact", "sources/0/10", "sources/1/0", "sources/1/x"]
    assert needed_source_logs(names) == ["sources/0/9.compact", "sources/0/10", "sources/1/0", "sources/1/x"]
    assert needed_source_logs([*names, "sources/0/19.compact"])[-1] == "sources/0/19.compact"
    assert "sources/0/10" not in needed_source_logs([*names, "sources/0/19.compact"])
