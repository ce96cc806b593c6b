"""Spark's checkpoint folder: which positions it can be built from, and which logs it needs."""

import pytest

from statebed.errors import ReplayError
from statebed.format import checkpoint_pb2 as pb
from statebed.protocol.projection import check_offsets, check_position, needed_source_logs, offset_names, rearranged


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


def named(names: list[str], offsets: list[str], logs: list[str]) -> pb.SourcePosition:
    """Return the position after batch 3, which Spark planned like the one before it."""
    content = "\n".join(["v1", "{}", *offsets]).encode()
    return pb.SourcePosition(
        kind="spark",
        batch_id=3,
        offsets=[pb.LogEntry(name=str(n), content=content) for n in (2, 3)],
        source_logs=[pb.SourceLogFile(name=log, path=f"of {log}") for log in logs],
        sources=names,
    )


def offsets_of(made: pb.SourcePosition) -> list[str]:
    (content,) = {entry.content for entry in made.offsets}
    return content.decode().split("\n")[2:]


def logs_of(made: pb.SourcePosition) -> dict[str, str]:
    return {log.name: log.path for log in made.source_logs}


def test_offsets_are_named_by_source_stream_and_log() -> None:
    assert offset_names([0], ["a"]) == ("a",)
    assert offset_names([0, 0, 1], ["a", "a", "b"]) == ("a", "a", "b")
    assert offset_names([0, 1], ["a", "a"]) == ("a#0", "a#1")
    assert offset_names([0, 0], ["a", "b"]) == ("a", "b=a")
    assert offset_names([0, 1, 0], ["a", "b", "b"]) == ("a", "b#0", "b#1=a")


def test_offsets_and_logs_follow_their_sources_to_other_places() -> None:
    before = named(["a", "b"], ["at a", "at b"], ["sources/0/7", "sources/1/9"])
    assert rearranged(before, ["a", "b"], where="here") is before
    turned = rearranged(before, ["b", "new", "a"], where="here")
    assert offsets_of(turned) == ["at b", "-", "at a"]
    assert logs_of(turned) == {"sources/2/7": "of sources/0/7", "sources/0/9": "of sources/1/9"}
    assert list(turned.sources) == ["b", "new", "a"]


def test_a_source_that_is_read_more_or_less_often_goes_on_from_where_it_is() -> None:
    before = named(["a", "b"], ["at a", "at b"], ["sources/0/7", "sources/1/9"])
    twice = rearranged(before, ["a", "a", "b"], where="here")
    assert offsets_of(twice) == ["at a", "at a", "at b"]
    assert logs_of(twice) == {"sources/0/7": "of sources/0/7", "sources/1/9": "of sources/1/9"}
    once = rearranged(named(["a", "a", "b"], ["at a", "at a", "at b"], [*logs_of(twice)]), ["b", "a"], where="here")
    assert offsets_of(once) == ["at b", "at a"]
    assert logs_of(once) == {"sources/1/7": "of sources/0/7", "sources/0/9": "of sources/1/9"}


def test_two_sources_of_one_stream_part_and_meet() -> None:
    shared = named(["a", "b=a", "c"], ["at a", "at a", "at c"], ["sources/0/7", "sources/1/9"])
    alone = rearranged(shared, ["c", "b"], where="here")
    assert offsets_of(alone) == ["at c", "at a"]
    assert logs_of(alone) == {"sources/1/7": "of sources/0/7", "sources/0/9": "of sources/1/9"}
    apart = rearranged(shared, ["a", "b", "c"], where="here")
    assert offsets_of(apart) == ["at a", "at a", "at c"]
    of_both = {"sources/0/7": "of sources/0/7", "sources/1/7": "of sources/0/7"}
    assert logs_of(apart) == {**of_both, "sources/2/9": "of sources/1/9"}


def test_what_nobody_can_tell_apart_is_refused() -> None:
    with pytest.raises(ReplayError, match="2 offsets, but 0 names; the job reads 2"):
        rearranged(named([], ["x", "y"], []), ["a", "b"], where="here")
    with pytest.raises(ReplayError, match="the source 'a' had 1 streams, but now has 2") as caught:
        rearranged(named(["a"], ["x"], []), ["a#0", "a#1"], where="here")
    assert "its own name" in str(caught.value)
    check_offsets(b"v1\n{}\nx\ny", ["a", "a"], where="here")
    with pytest.raises(ReplayError, match="2 offsets, but the job knows the sources of 1"):
        check_offsets(b"v1\n{}\nx\ny", ["a"], where="here")
