"""Two-phase commit of a sink: the record contains what it prepared, so the next run finishes exactly that."""

from dataclasses import replace

import pytest
from simulation.world import OPERATORS, Process, World

from statebed.checkpoint import Guarantee, Publication, Publisher, SinkPosition
from statebed.format import checkpoint_pb2 as pb
from statebed.testing.faults import Fault, FaultStore, Operation, SimulatedCrash, Verb


class PreparedTransactions:
    """A database outside of the store: transactions are prepared by tasks and committed by name."""

    sink_id = "database"
    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(self) -> None:
        self.prepared: dict[bytes, str] = {}
        self.committed: list[str] = []

    def prepare(self, name: bytes, rows: str) -> bytes:
        self.prepared[name] = rows
        return name

    def open(self, run: int) -> SinkPosition | None:
        return None

    def roll_back(self, run: int, epoch: int) -> None:
        raise AssertionError("nothing is rolled back here")

    def publish(self, publication: Publication) -> None:
        for piece in publication.commit_data:
            if piece.data in self.prepared:  # otherwise the run that crashed before the marker committed it
                self.committed.append(self.prepared.pop(piece.data))


def commit_with_prepared_rows(process: Process, sink: PreparedTransactions, rows: str) -> None:
    """Phase one, then the record that carries what phase two needs."""
    draft, content = process.draft(rows)
    epoch = process.run.next_epoch
    pieces = [
        pb.CommitData(subtask_index=index, data=sink.prepare(f"{epoch}-{index}-{rows}".encode(), f"{rows} {index}"))
        for index in range(2)
    ]
    entry = pb.SinkEntry(sink_id=sink.sink_id, operator_id=OPERATORS[0], commit_data=pieces)
    process.world.attempted.setdefault(epoch, []).append(content)
    process.run.commit(replace(draft, sinks=[entry]))


def test_p2_prepared_rows_are_committed_by_the_next_run_when_the_record_was_written(world: World) -> None:
    sink = PreparedTransactions()
    first = world.process().open(publish=False)
    commit_with_prepared_rows(first, sink, "kept")  # and here the process dies, before phase two
    successor = world.process().open(publish=False)
    Publisher(successor.run, [sink]).open()
    assert sink.committed == ["kept 0", "kept 1"]
    again = world.process().open(publish=False)
    Publisher(again.run, [sink]).open()
    assert sink.committed == ["kept 0", "kept 1"]


def test_p2_prepared_rows_whose_record_was_never_written_are_never_committed(world: World) -> None:
    def die_at_the_record(operation: Operation) -> Fault | None:
        at_record = operation.verb is Verb.PUT_IF_ABSENT and operation.path.endswith("2/checkpoint.metadata")
        return Fault.CRASH_BEFORE if at_record else None

    sink = PreparedTransactions()
    first = world.process(FaultStore(world.disk, die_at_the_record)).open(publish=False)
    with pytest.raises(SimulatedCrash):
        commit_with_prepared_rows(first, sink, "lost")
    successor = world.process().open(publish=False)
    Publisher(successor.run, [sink]).open()
    commit_with_prepared_rows(successor, sink, "instead")
    Publisher(successor.run, [sink]).publish_pending()
    assert sink.committed == ["instead 0", "instead 1"]
    assert list(sink.prepared.values()) == ["lost 0", "lost 1"], "for the database's own time-out to remove"


def test_p3_a_crash_between_phase_two_and_its_marker_commits_nothing_twice(world: World) -> None:
    sink = PreparedTransactions()
    store = FaultStore(
        world.disk, lambda op: Fault.CRASH_BEFORE if "published-" in op.path and op.verb.writes else None
    )
    first = world.process(store).open(publish=False)
    commit_with_prepared_rows(first, sink, "once")
    with pytest.raises(SimulatedCrash):
        Publisher(first.run, [sink]).publish_pending()
    assert sink.committed == ["once 0", "once 1"]
    successor = world.process().open(publish=False)
    assert [waiting for _, waiting in successor.run.pending()] == [("database",)]
    Publisher(successor.run, [sink]).open()
    assert sink.committed == ["once 0", "once 1"]
    assert successor.run.pending() == []
