"""Heartbeats and ends of runs: put once, replaced, deleted with the log, never in the way of it."""

import pytest
from unit.checkpoint.place import JOB, Place

from statebed.checkpoint.run_status import known_runs, put_end, put_heartbeat, read_end, read_heartbeat
from statebed.errors import CorruptObjectError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.protocol.cleanup import RUNS_KEPT


def test_the_first_end_of_a_run_stays_and_the_newest_heartbeat_stands(place: Place) -> None:
    put_end(place.store, pb.RunEnd(job_id=JOB, run=4, outcome=pb.RUN_FAILED))
    put_end(place.store, pb.RunEnd(job_id=JOB, run=4, outcome=pb.RUN_STOPPED))
    end = read_end(place.store, 4)
    assert end is not None
    assert end.outcome == pb.RUN_FAILED
    for time_us in (1, 2):
        put_heartbeat(place.store, pb.RunHeartbeat(job_id=JOB, run=4, time_us=time_us))
    beat = read_heartbeat(place.store, 4)
    assert beat is not None
    assert beat.time_us == 2
    assert read_end(place.store, 5) is None
    assert known_runs(place.store) == [4]


def test_a_damaged_end_is_named_and_never_read_as_another_outcome(place: Place) -> None:
    put_end(place.store, pb.RunEnd(job_id=JOB, run=4, outcome=pb.RUN_FAILED))
    path = names.run_end(4)
    whole = place.store.get(path)
    for position in range(len(whole)):
        place.store.put(path, whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(CorruptObjectError, match="RunEnd"):
            read_end(place.store, 4)


def test_p5_the_number_of_ends_and_heartbeats_is_bounded_over_many_runs(place: Place) -> None:
    for _ in range(RUNS_KEPT + 20):
        run = place.open(epochs=2)
        put_heartbeat(place.store, pb.RunHeartbeat(job_id=JOB, run=run.number))
        put_end(place.store, pb.RunEnd(job_id=JOB, run=run.number, outcome=pb.RUN_FAILED))
        for _ in range(3):
            place.commit(run)
        run.clean_up()
        assert len(known_runs(place.store)) <= RUNS_KEPT
        assert run.number in known_runs(place.store)
    assert len(known_runs(place.store)) == RUNS_KEPT


def test_undelivered_sinks_are_known_after_the_run_was_fenced(place: Place) -> None:
    run = place.open()
    place.commit(run, sinks=("a", "b"))
    place.commit(run, sinks=("a", "b"))
    run.mark_published(2, "a")
    place.open()
    assert [(one.sink_id, one.first_epoch, one.epochs) for one in run.undelivered] == [("a", 3, 1), ("b", 2, 2)]
