"""Spark's checkpoint folder against the record: kept only when it agrees in everything."""

from dataclasses import replace

import pytest

from statebed.format import checkpoint_pb2 as pb
from statebed.protocol.projection import (
    FolderFacts,
    ProjectionAction,
    SourceLogFact,
    decide_projection,
    needed_source_logs,
)

QUERY = "q-1"
LOG = SourceLogFact(size=4, crc32c=9)


def position(batch: int = 3) -> pb.SourcePosition:
    return pb.SourcePosition(
        kind="spark",
        query_id=QUERY,
        batch_id=batch,
        offsets=[pb.LogEntry(name=str(n), content=b"o%d" % n) for n in (batch - 1, batch) if n >= 0],
        source_logs=[pb.SourceLogFile(name=f"sources/0/{batch}", path="x", size=4, crc32c=9)],
    )


def folder(
    *,
    query: str | None = QUERY,
    planned: int = 3,
    committed: int = 3,
    offsets: dict[int, bytes] | None = None,
    log: SourceLogFact | None = LOG,
) -> FolderFacts:
    return FolderFacts(
        query_id=query,
        offsets=offsets if offsets is not None else {n: b"o%d" % n for n in range(planned + 1)},
        commits=frozenset(range(committed + 1)),
        source_logs={"sources/0/3": log} if log else {},
    )


@pytest.mark.parametrize(
    "kept",
    [
        pytest.param(folder(), id="as committed"),
        pytest.param(folder(committed=2), id="the driver died between the record and Spark's commit"),
        pytest.param(folder(planned=4), id="the driver died in the batch after"),
    ],
)
def test_a_folder_that_agrees_is_kept(kept: FolderFacts) -> None:
    assert decide_projection(position(), kept).action is ProjectionAction.KEEP


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        pytest.param(replace(folder(planned=4), torn=frozenset({"offsets/4"})), "no content", id="torn by a power cut"),
        pytest.param(FolderFacts(), "missing", id="deleted"),
        pytest.param(folder(query="q-2"), "belongs to query q-2", id="another job"),
        pytest.param(folder(query=None), "belongs to query None", id="cut short in the building"),
        pytest.param(folder(planned=2, committed=2), "stale or cut", id="an older copy"),
        pytest.param(folder(planned=4, committed=4), "ahead: batch 4 is committed", id="committed ahead"),
        pytest.param(folder(planned=5), "ahead: batch 5 is planned", id="planned ahead"),
        pytest.param(folder(planned=4, committed=2), "without having committed", id="a commit lost"),
        pytest.param(folder(offsets={2: b"o2", 3: b"other"}), "forked", id="other rows under the same number"),
        pytest.param(folder(offsets={3: b"o3"}), "lacks the offsets of batch 2", id="the batch before is lost"),
        pytest.param(folder(log=None), "source log", id="source log cut"),
        pytest.param(replace(folder(), orphans=frozenset({"commits/.3.crc"})), ".3.crc", id="a file removed by hand"),
        pytest.param(folder(log=SourceLogFact(4, 8)), "source log", id="source log changed"),
    ],
)
def test_a_folder_that_disagrees_anywhere_is_built_again(facts: FolderFacts, reason: str) -> None:
    decision = decide_projection(position(), facts)
    assert decision.action is ProjectionAction.REBUILD
    assert reason in decision.reason


def test_before_the_first_record_the_folder_must_be_empty() -> None:
    assert decide_projection(pb.SourcePosition(), FolderFacts()).action is ProjectionAction.KEEP
    assert decide_projection(pb.SourcePosition(), folder()).action is ProjectionAction.REBUILD


def test_the_first_batch_needs_no_batch_before_it() -> None:
    first = FolderFacts(
        query_id=QUERY, offsets={0: b"o0"}, commits=frozenset({0}), source_logs={"sources/0/0": SourceLogFact(4, 9)}
    )
    assert decide_projection(position(0), first).action is ProjectionAction.KEEP


def test_a_position_of_another_program_or_without_offsets_is_refused() -> None:
    assert decide_projection(pb.SourcePosition(kind="mine"), FolderFacts()).action is ProjectionAction.REFUSE
    cut = position()
    del cut.offsets[0]
    assert decide_projection(cut, folder()).action is ProjectionAction.REFUSE


def test_of_a_source_log_the_newest_compacted_file_and_what_follows_are_needed() -> None:
    names = [f"sources/0/{n}" for n in range(9)] + ["sources/0/9.compact", "sources/0/10", "sources/1/0", "sources/1/x"]
    assert needed_source_logs(names) == ["sources/0/9.compact", "sources/0/10", "sources/1/0", "sources/1/x"]
    assert needed_source_logs([*names, "sources/0/19.compact"])[-1] == "sources/0/19.compact"
    assert "sources/0/10" not in needed_source_logs([*names, "sources/0/19.compact"])
