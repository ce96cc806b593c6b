"""Requests to the live run: answered once, after the record that carries the effect, by the run that is live then."""

import threading

import pytest
from unit.checkpoint.place import Place

from statebed.checkpoint import Environment, Origin, Run, send_request
from statebed.errors import FencedError, ProtocolError, RequestTimeoutError, SavepointError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.sealed import seal
from statebed.protocol.requests import AddSavepoint, Stop
from statebed.testing.faults import Fault, FaultStore, Operation, SimulatedCrash

WAIT_SECONDS = 120.0
"""Longer than any answer takes on a busy machine."""
SAVE = pb.Request(savepoint=pb.SavepointRequest(name="monday"))
DROP = pb.Request(drop_savepoint=pb.DropSavepointRequest(name="monday"))


def ask(place: Place, request: pb.Request, request_id: str = "r") -> None:
    """Send a request as a tool does, without waiting."""
    asked = pb.Request()
    asked.CopyFrom(request)
    asked.request_id = request_id
    place.store.put_if_absent(names.request(request_id), seal(asked))


def answer(place: Place, request_id: str = "r") -> pb.Answer | None:
    path = names.answer(request_id)
    return pb.Answer.FromString(place.store.get(path)) if place.store.head(path) else None


def pins(run: Run) -> list[tuple[str, int]]:
    return [(pin.savepoint, pin.epoch) for pin in run.head.pins]


def test_a_tool_hears_from_a_live_run_and_leaves_nothing_behind(place: Place) -> None:
    run = place.open()
    place.commit(run)
    stop, goes_on = threading.Event(), threading.Event()

    def live() -> None:
        while not stop.wait(0.01):
            if run.serve_requests() or goes_on.is_set():
                run.commit(run.carry_over())

    thread = threading.Thread(target=live)
    thread.start()
    try:
        found = send_request(place.store, SAVE, timeout_s=WAIT_SECONDS, environment=Environment())
        goes_on.set()  # a refusal is answered with the next record, which the request itself does not cause
        with pytest.raises(ProtocolError, match="SAVEPOINT"):
            send_request(place.store, SAVE, timeout_s=WAIT_SECONDS, environment=Environment())
    finally:
        stop.set()
        thread.join(WAIT_SECONDS)
    assert found.granted
    assert found.epoch == 3
    assert pins(run) == [("monday", 2)]
    assert not list(place.store.list("requests"))


def test_without_a_live_run_the_request_is_withdrawn_in_time(place: Place) -> None:
    place.open()
    before = place.contents()
    started = place.now_us
    with pytest.raises(RequestTimeoutError, match="3 s"):
        send_request(place.store, SAVE, timeout_s=3, environment=place.environment)
    assert 3_000_000 <= place.now_us - started < 4_000_000
    assert place.contents() == before


def test_nothing_is_answered_before_the_record_is_committed(place: Place) -> None:
    run = place.open()
    place.commit(run)
    ask(place, SAVE)
    ask(place, DROP, "refused")
    assert run.serve_requests() == [AddSavepoint("monday", 2)]
    assert answer(place) is None
    assert answer(place, "refused") is None
    place.commit(run)
    granted, refusal = answer(place), answer(place, "refused")
    assert granted is not None
    assert refusal is not None
    assert granted.granted
    assert not refusal.granted
    assert refusal.code == SavepointError.code
    assert refusal.what


def test_p3_a_superseded_run_never_answers(place: Place) -> None:
    old = place.open()
    place.commit(old)
    ask(place, SAVE)
    old.serve_requests()
    new = place.open()
    with pytest.raises(FencedError):
        place.commit(old)
    assert answer(place) is None
    new.serve_requests()
    place.commit(new)
    found = answer(place)
    assert found is not None
    assert found.run == new.number
    assert pins(new) == [("monday", 2)]


def crash_before_answer(place: Place, request: pb.Request) -> None:
    def dies(operation: Operation) -> Fault | None:
        return Fault.CRASH_BEFORE if operation.path.endswith(".answer") else None

    run = place.open(through=FaultStore(place.disk, dies))
    place.commit(run)
    ask(place, request)
    run.serve_requests()
    with pytest.raises(SimulatedCrash):
        place.commit(run)


def test_after_a_crash_before_the_answer_the_next_run_answers_and_does_nothing_twice(place: Place) -> None:
    crash_before_answer(place, SAVE)
    run = place.open()
    assert pins(run) == [("monday", 2)]
    assert run.serve_requests() == []
    place.commit(run)
    assert pins(run) == [("monday", 2)]
    found = answer(place)
    assert found is not None
    assert found.granted
    assert found.epoch == 3, "the record that carries the effect, not the one before the answer"


def test_a_stop_does_not_stop_the_next_run(place: Place) -> None:
    crash_before_answer(place, pb.Request(stop=pb.StopRequest(drain=True)))
    run = place.open()
    assert run.serve_requests() == []


def test_a_stop_waits_for_the_next_record_and_no_other(place: Place) -> None:
    run = place.open()
    ask(place, pb.Request(stop=pb.StopRequest()))
    assert run.serve_requests() == [Stop(drain=False)]
    place.commit(run)
    assert run.serve_requests() == []


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.LOSE_WRITE, Fault.UNAVAILABLE])
def test_a_store_that_fails_while_answering_fails_no_commit_and_repeats_no_effect(place: Place, fault: Fault) -> None:
    faults = [fault]
    store = FaultStore(place.disk, lambda o: faults.pop() if faults and o.path.endswith(".answer") else None)
    run = place.open(through=store)
    place.commit(run)
    ask(place, SAVE)
    run.serve_requests()
    assert place.commit(run).epoch == 3
    run.serve_requests()
    place.commit(run)
    assert pins(run) == [("monday", 2)]
    found = answer(place)
    assert found is not None
    assert found.epoch == 3


def test_a_savepoint_of_an_unreadable_epoch_is_refused_and_stops_no_commit(place: Place) -> None:
    run = place.open()
    place.commit(run)
    place.commit(run)
    place.store.put(names.record(2), b"damaged")
    ask(place, pb.Request(savepoint=pb.SavepointRequest(name="monday", epoch=2)))
    run.serve_requests()
    assert place.commit(run).epoch == 4
    found = answer(place)
    assert found is not None
    assert found.code == "CORRUPT_RECORD"


@pytest.mark.parametrize("data", [b"", b"nonsense", seal(pb.Request(request_id="r"))])
def test_a_request_that_cannot_be_understood_is_refused_and_stops_no_commit(place: Place, data: bytes) -> None:
    run = place.open()
    place.store.put(names.request("r"), data)
    assert run.serve_requests() == []
    place.commit(run)
    found = answer(place)
    assert found is not None
    assert not found.granted


@pytest.mark.parametrize("name", ["-bad", "a b", "x" * 200])
def test_an_object_that_is_no_request_is_passed_over(place: Place, name: str) -> None:
    run = place.open()
    place.store.put(f"requests/{name}", b"")
    assert run.serve_requests() == []
    assert place.commit(run).epoch == 2


def test_answers_that_nobody_fetched_are_removed_after_a_day(place: Place) -> None:
    run = place.open()
    place.commit(run)
    ask(place, SAVE, "abandoned")
    ask(place, DROP, "withdrawn")
    run.serve_requests()
    place.store.delete(names.request("withdrawn"))
    place.commit(run)
    assert len(list(place.store.list("requests"))) == 3
    place.now_us += 25 * 3600 * 1_000_000
    run.serve_requests()
    assert not list(place.store.list("requests"))


def left_of(place: Place, epoch: int) -> bool:
    return any(True for _ in place.store.list(names.epoch_folder(epoch) + "/data"))


def test_p5_a_savepoint_keeps_its_epoch_until_it_is_dropped_and_the_grace_is_over(place: Place) -> None:
    run = place.open(epochs=1, grace_s=60)
    pinned = place.commit(run)
    run.add_request(SAVE)
    for _ in range(4):
        place.commit(run)
    place.now_us += 1_000_000_000
    place.commit(run)
    run.clean_up()
    assert place.store.head(names.record(2)) is None
    assert left_of(place, 2)
    assert not left_of(place, 3)
    place.backend.prepare_checkpoint_load(pinned)
    run.add_request(DROP)
    place.commit(run)
    run.clean_up()
    assert left_of(place, 2), "a reader may have opened it"
    place.now_us += 61_000_000
    place.commit(run)
    place.now_us += 61_000_000
    for _ in range(2):
        run = place.open(epochs=1, grace_s=60)  # the first clean-up of a run sweeps
        place.now_us += 61_000_000
        run.clean_up()
    assert not left_of(place, 2)


def test_a_run_opens_at_a_savepoint_whose_epoch_is_long_gone(place: Place) -> None:
    run = place.open(epochs=1)
    saved = place.commit(run, "saved")
    run.add_request(SAVE)
    for _ in range(4):
        place.commit(run)
    run.clean_up()
    fork = place.open(origin=Origin(savepoint="monday"), epochs=3)
    assert fork.head.base == 2
    assert fork.head.operators == saved.operators
    assert fork.head.source_position.opaque == b"saved"
    kept = fork.head.min_epoch
    assert place.commit(fork).min_epoch == kept, "the lineage that was left stays readable"
