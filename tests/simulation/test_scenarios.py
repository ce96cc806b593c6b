"""Seven ways in which streaming systems lose or repeat data, each as a short story with a given end."""

import pytest
from simulation.world import World

from statebed.checkpoint import Origin, Publication, RollbackPolicy
from statebed.errors import FencedError, ReplayError, RollbackError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.protocol import Replay, decide_replay
from statebed.testing.faults import FaultStore, Operation, SimulatedCrash, Verb


def is_record_put(operation: Operation) -> bool:
    return operation.verb is Verb.PUT_IF_ABSENT and operation.path.endswith("checkpoint.metadata")


# ---- 1: a zombie that resumes after its epoch was deleted ----------------------------------------------------


def test_p3_a_zombie_that_resumes_after_its_epoch_was_collected_is_fenced(world: World) -> None:
    paused_at: list[int] = []

    def pause(operation: Operation) -> None:
        """While the zombie sleeps before its put, a new run continues until clean-up has deleted that number."""
        if armed and is_record_put(operation) and not paused_at:
            paused_at.append(int(operation.path.split("/")[1]))
            other = world.process().open()
            for _ in range(12):
                world.seconds += 10
                other.epoch("new ")
            assert not other.store.head(operation.path), "the zombie's number must be deleted by now"

    armed = False
    zombie = world.process(FaultStore(world.disk, before=pause)).open()
    zombie.epoch("old ")
    armed = True
    with pytest.raises(FencedError) as fenced:
        zombie.commit("zombie ")
    assert fenced.value.exit_code == 86
    del world.attempted[paused_at[0]][-1:]  # the zombie's content must never be seen
    with pytest.raises(FencedError):
        zombie.publisher.publish_pending()
    successor = world.process().open()
    successor.finish()
    world.check_retained()
    world.check_sinks()
    world.check_no_orphans()  # the re-created record is gone too


def test_p3_a_first_run_that_resumes_after_record_1_was_collected_is_fenced(world: World) -> None:
    slept = False

    def pause(operation: Operation) -> None:
        nonlocal slept
        if is_record_put(operation) and not slept:
            slept = True
            other = world.process().open()
            for _ in range(8):
                world.seconds += 10
                other.epoch()
            assert world.disk.head(names.record(1)) is None

    with pytest.raises(FencedError, match="cleaned up"):
        world.process(FaultStore(world.disk, before=pause)).open()


# ---- 2: a fork followed by the same batch ids with other rows --------------------------------------------------


def test_p2_after_a_fork_the_same_batch_ids_carry_other_rows_and_are_processed(world: World) -> None:
    first = world.process().open(epochs=10)
    for _ in range(5):
        first.epoch("first ")
    abandoned = first.run.head
    fork = world.process().open(epochs=10, origin=Origin(epoch=3), rollback=RollbackPolicy.ALLOW)
    position = fork.run.head.source_position
    again = position.batch_id + 1
    assert again <= abandoned.source_position.batch_id
    # A record of that batch exists (abandoned), yet the batch is new to this lineage.
    assert decide_replay(position, query_id="q", batch_id=again, offsets=b"other rows") is Replay.PROCESS
    record = fork.epoch("fork ")
    assert record.source_position.batch_id == again
    assert record.lineage != abandoned.lineage
    world.check_retained()
    world.check_sinks()


def test_p2_a_batch_of_this_lineage_with_other_offsets_is_refused() -> None:
    position = pb.SourcePosition(kind="spark", query_id="q", batch_id=7, offsets=[pb.LogEntry(name="7", content=b"a")])
    assert decide_replay(position, query_id="q", batch_id=7, offsets=b"a") is Replay.ALREADY_COMMITTED
    with pytest.raises(ReplayError, match="other offsets"):
        decide_replay(position, query_id="q", batch_id=7, offsets=b"b")


# ---- 3: a savepoint requested during a clean-up -------------------------------------------------------


@pytest.mark.parametrize("interrupted", [False, True])
def test_p5_a_savepoint_asked_for_while_garbage_is_collected_stays_whole(world: World, interrupted: bool) -> None:
    asked = False

    def request_during_cleanup(operation: Operation) -> None:
        nonlocal asked
        if operation.verb is Verb.DELETE and not asked and live.run.head.epoch > 6:
            asked = True
            oldest = live.run.head.min_epoch
            request = pb.Request(savepoint=pb.SavepointRequest(name="keep", epoch=oldest))
            live.run.add_request(request)
            if interrupted:
                store.crash()

    store = FaultStore(world.disk, before=request_during_cleanup)
    live = world.process(store).open()
    try:
        for _ in range(10):
            world.seconds += 3
            live.epoch()
    except SimulatedCrash:
        live = world.process().open()
        live.run.add_request(pb.Request(savepoint=pb.SavepointRequest(name="keep", epoch=live.run.chain[0])))
        live.epoch()
    assert asked
    assert [pin.savepoint for pin in live.run.head.pins] == ["keep"]
    live.finish()
    assert live.run.head.pins[0].epoch < live.run.head.min_epoch, "the pinned epoch itself has left the log"
    world.check_retained()
    restored = world.process().open(origin=Origin(savepoint="keep"), rollback=RollbackPolicy.ALLOW)
    assert restored.run.head.base == live.run.head.pins[0].epoch
    restored.epoch("restored ")
    world.check_retained()
    world.check_sinks()


def test_p3_a_zombie_collector_does_not_break_a_savepoint_of_the_same_name_made_after_it(world: World) -> None:
    """The zombie drops the old savepoint while the new run has made another of that name."""
    slept = False

    def pause(operation: Operation) -> None:
        nonlocal slept
        if operation.verb is Verb.DELETE and "savepoint-" in operation.path and not slept:
            slept = True
            other = world.process().open()
            other.run.add_request(pb.Request(savepoint=pb.SavepointRequest(name="keep")))
            other.epoch("new ")
            for _ in range(6):
                other.epoch("new ")

    zombie = world.process(FaultStore(world.disk, before=pause)).open()
    zombie.epoch()
    zombie.run.add_request(pb.Request(savepoint=pb.SavepointRequest(name="keep")))
    zombie.epoch()
    zombie.run.add_request(pb.Request(drop_savepoint=pb.DropSavepointRequest(name="keep")))
    while not slept:
        world.seconds += 10
        zombie.epoch()
    with pytest.raises(FencedError):
        zombie.epoch()
    world.check_retained()


# ---- 4: a zombie that publishes late ---------------------------------------------------------------------------


@pytest.mark.parametrize("fork", [False, True])
def test_p3_a_zombie_that_publishes_late_changes_nothing(world: World, fork: bool) -> None:
    zombie = world.process().open(epochs=10)
    zombie.epoch()
    base = zombie.run.head.epoch
    zombie.commit("late ")
    newer = world.process().open(epochs=10, origin=Origin(epoch=base if fork else None))
    newer.epoch("new ")
    before = {name: list(sink.rows) for name, sink in world.sinks.items()}
    with pytest.raises(FencedError):
        zombie.publisher.publish_pending()
    assert {name: list(sink.rows) for name, sink in world.sinks.items()} == before
    late = [row for sink in world.sinks.values() for _, row in sink.rows if row.startswith(b"late")]
    assert bool(late) is not fork  # without a fork the new run published that epoch in the zombie's place
    world.check_sinks()


def test_p3_a_zombie_past_its_last_look_is_refused_by_the_sink_itself(world: World) -> None:
    """The zombie looked, was live, and slept before the sink's own transaction."""
    zombie = world.process().open(epochs=10)
    zombie.epoch()
    zombie.commit("late ")
    sink = world.sinks["alpha"]
    write = sink.publish
    slept: list[int] = []

    def sleepy_publish(publication: object) -> None:
        if not slept:
            slept.append(1)
            newer = world.process().open(epochs=10, origin=Origin(epoch=2))
            newer.epoch("new ")
        write(publication)  # type: ignore[arg-type]

    sink.publish = sleepy_publish  # type: ignore[method-assign]
    with pytest.raises(FencedError):
        zombie.publisher.publish_pending()
    assert not [row for _, row in sink.rows if row.startswith(b"late")]
    world.check_sinks()


def test_p3_an_epoch_that_reached_a_sink_and_was_then_abandoned_stops_the_fork(world: World) -> None:
    """The sink has the epoch, the crash took the marker: the fork must not continue as if the sink did not have it."""
    store = FaultStore(world.disk)
    first = world.process(store).open(epochs=10)
    first.epoch()
    first.commit("reached ")
    original = first.run.mark_published
    first.run.mark_published = lambda *_: store.crash() or original(*_)  # type: ignore[func-returns-value, method-assign]
    with pytest.raises(SimulatedCrash):
        first.publisher.publish_pending()
    with pytest.raises(RollbackError, match="already has epoch"):
        world.process().open(epochs=10, origin=Origin(epoch=2))
    allowed = world.process().open(epochs=10, rollback=RollbackPolicy.ALLOW)
    allowed.epoch("after ")
    world.check_sinks()


# ---- 5: a crash between two sinks' publications ----------------------------------------------------------------


def test_p3_a_crash_between_two_sinks_publications_leaves_neither_behind_nor_twice(world: World) -> None:
    store = FaultStore(world.disk, lambda op: None)
    process = world.process(store).open()
    process.epoch()
    record = process.commit("second ")
    beta = world.sinks["beta"].publish

    def die(publication: Publication) -> None:
        store.crash()
        raise SimulatedCrash("between the sinks")

    world.sinks["beta"].publish = die  # type: ignore[method-assign]
    with pytest.raises(SimulatedCrash):
        process.publisher.publish_pending()
    world.sinks["beta"].publish = beta  # type: ignore[method-assign]
    assert [epoch for epoch, _ in world.sinks["alpha"].rows][-1] == record.epoch
    assert record.epoch not in [epoch for epoch, _ in world.sinks["beta"].rows]
    successor = world.process().open(publish=False)
    assert [(r.epoch, sinks) for r, sinks in successor.run.pending()] == [(record.epoch, ("beta",))]
    successor.publisher.open()
    world.check_sinks()


# ---- 6: a crash loop of 50 run_starts --------------------------------------------------------------------------


def test_p5_a_crash_loop_of_50_run_starts_pushes_no_history_out(world: World) -> None:
    process = world.process().open(epochs=4)
    for _ in range(6):
        process.epoch()
    history = process.run.chain
    for _ in range(50):
        world.seconds += 1_000
        crashed = world.process().open(epochs=4)
        crashed.run.clean_up()
        assert crashed.run.chain == history
    survivor = world.process().open(epochs=4)
    assert survivor.run.chain == history
    world.check_retained()
    back = world.process().open(epochs=4, origin=Origin(epoch=history[0]), rollback=RollbackPolicy.ALLOW)
    assert back.run.head.base == history[0]
    back.epoch("back ")
    back.finish()
    world.check_sinks()
    world.check_no_orphans()  # and the 50 run_starts have left with the epochs before them


# ---- 7: a batch from Spark's checkpoint of another time or job ---------------------------------------------------


def position_of(batch: int, *, query_id: str = "ours", salt: str = "") -> pb.SourcePosition:
    """Return the position that the record of batch `batch` carries."""
    return pb.SourcePosition(
        kind="spark",
        query_id=query_id,
        batch_id=batch,
        offsets=[pb.LogEntry(name=str(b), content=f"{salt}offsets {b}".encode()) for b in (batch - 1, batch)],
        commits=[pb.LogEntry(name=str(batch), content=b"{}")],
        source_logs=[pb.SourceLogFile(name=f"sources/0/{batch}", path="p", size=3, crc32c=7)],
    )


def test_p2_a_batch_offered_from_a_foreign_or_stale_checkpoint_is_refused_whatever_the_folder_says() -> None:
    position = position_of(7)
    for query_id, batch_id in [("theirs", 8), ("ours", 9), ("ours", 5)]:
        with pytest.raises(ReplayError, match="disagree"):
            decide_replay(position, query_id=query_id, batch_id=batch_id, offsets=b"offsets")
