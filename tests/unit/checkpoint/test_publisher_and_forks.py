"""Publication: in order, once where a sink can, and again after every kind of fork."""

import pytest
from unit.checkpoint.place import MailSink, Place, TableSink

from statebed.checkpoint import DamagePolicy, Origin, Publisher, RollbackPolicy, Run, SinkStart
from statebed.errors import FencedError, RollbackError, SinkStartError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.testing.faults import Fault, FaultStore, SimulatedCrash

BOTH = ("table", "mail")


class SinkDownError(Exception):
    """A sink's own failure."""


def publish(run: Run, *sinks: TableSink | MailSink) -> Publisher:
    publisher = Publisher(run, sinks)
    publisher.open()
    return publisher


def test_epochs_are_published_oldest_first_to_every_sink_and_marked(
    place: Place, table: TableSink, mail: MailSink
) -> None:
    run = place.open()
    publisher = publish(run, table, mail)
    for _ in range(3):
        place.commit(run, sinks=BOTH)
    assert publisher.publish_pending() == 6
    assert table.rows == {2: "epoch 2", 3: "epoch 3", 4: "epoch 4"}
    assert mail.sent == [2, 3, 4]
    assert publisher.publish_pending() == 0
    assert all(place.store.head(names.published(epoch, sink)) for epoch in (2, 3, 4) for sink in BOTH)


def test_a_new_run_publishes_what_its_predecessor_left(place: Place, table: TableSink, mail: MailSink) -> None:
    old = place.open()
    publish(old, table, mail)
    for _ in range(2):
        place.commit(old, sinks=BOTH)
    publish(place.open(), table, mail)
    assert sorted(table.rows) == mail.sent == [2, 3]


def test_p3_a_crash_between_sink_and_marker_repeats_only_where_a_sink_cannot_tell(
    place: Place, table: TableSink, mail: MailSink
) -> None:
    store = FaultStore(place.disk, lambda o: Fault.CRASH_BEFORE if "/published-" in o.path and o.verb.writes else None)
    for sink in (table, mail):
        run = place.open(through=store if sink is table else FaultStore(place.disk, store._plan))
        publish(run, sink)
        place.commit(run, sinks=(sink.sink_id,))
        with pytest.raises(SimulatedCrash):
            Publisher(run, [sink]).publish_pending()
        publish(place.open(), sink)
    assert table.rows == {2: "epoch 2"}
    assert mail.sent == [5, 5]


def test_an_epoch_that_a_sink_refused_is_offered_again_before_any_later_one(place: Place, table: TableSink) -> None:
    run = place.open()
    publisher = publish(run, table)

    def fails(epoch: int) -> None:
        raise SinkDownError(epoch)

    place.commit(run, sinks=("table",))
    place.commit(run, sinks=("table",))
    table.before_publish = fails
    with pytest.raises(SinkDownError):
        publisher.publish_pending()
    assert table.rows == {}
    table.before_publish = lambda _: None
    publisher.publish_pending()
    assert list(table.rows) == [2, 3]


def test_retention_waits_for_a_sink_that_is_behind(place: Place, table: TableSink) -> None:
    run = place.open(epochs=1)
    publisher = publish(run, table)
    for _ in range(4):
        place.commit(run, sinks=("table",))
    assert run.head.min_epoch <= 2
    publisher.publish_pending()
    assert place.commit(run, sinks=("table",)).min_epoch == 6


def test_an_abandoned_sink_holds_nothing_back(place: Place, table: TableSink) -> None:
    run = place.open(epochs=1)
    place.commit(run, sinks=("gone",))
    publisher = Publisher(run, [table], abandon=["gone"])
    publisher.open()
    assert publisher.publish_pending() == 0
    assert place.commit(run).min_epoch == 3


def test_a_start_after_a_fork_that_allowed_it_takes_sinks_back_without_being_told_again(
    place: Place, table: TableSink
) -> None:
    run = place.open()
    publisher = publish(run, table)
    for _ in range(3):
        place.commit(run, sinks=("table",))
        publisher.publish_pending()
    place.open(origin=Origin(epoch=2), rollback=RollbackPolicy.ALLOW)  # dies before it asks its sinks
    publish(place.open(), table)
    assert list(table.rows) == [2]


def test_p3_a_zombie_cannot_publish(place: Place, table: TableSink, mail: MailSink) -> None:
    old = place.open()
    publisher = publish(old, table, mail)
    place.commit(old, sinks=BOTH)
    new = place.open(origin=Origin(epoch=1))
    publish(new, table, mail)
    with pytest.raises(FencedError):
        publisher.publish_pending()
    assert table.rows == {}
    assert mail.sent == []


def test_p3_a_zombie_that_is_past_its_check_is_refused_by_the_sink(place: Place, table: TableSink) -> None:
    old = place.open()
    publisher = publish(old, table)
    place.commit(old, sinks=("table",))

    def overtake(_: int) -> None:
        table.before_publish = lambda _: None
        publish(place.open(origin=Origin(epoch=1)), table)

    table.before_publish = overtake
    with pytest.raises(FencedError):
        publisher.publish_pending()
    assert table.rows == {}
    assert place.store.head(names.published(2, "table")) is None


def test_p3_a_zombie_cannot_open_the_sinks_of_a_newer_run(place: Place, mail: MailSink) -> None:
    old = place.open()
    place.open()
    with pytest.raises(FencedError):
        publish(old, mail)


def published_history(place: Place, sink: TableSink, epochs: int) -> None:
    run = place.open()
    publisher = publish(run, sink)
    for _ in range(epochs):
        place.commit(run, sinks=("table",))
    publisher.publish_pending()


def test_going_back_past_published_epochs_is_refused_unless_asked_for(place: Place, table: TableSink) -> None:
    published_history(place, table, 3)
    before = place.contents()
    with pytest.raises(RollbackError, match="epochs 3 to 4"):
        place.open(origin=Origin(epoch=2))
    assert place.contents() == before
    publish(place.open(origin=Origin(epoch=2), rollback=RollbackPolicy.ALLOW), table)
    assert list(table.rows) == [2]


def test_a_sink_that_got_an_epoch_without_its_marker_is_noticed_after_a_fork(place: Place, table: TableSink) -> None:
    published_history(place, table, 2)
    place.store.delete(names.published(3, "table"))
    fork = place.open(origin=Origin(epoch=2))
    with pytest.raises(RollbackError, match="sink table already has epoch 3"):
        publish(fork, table)
    assert list(table.rows) == [2, 3]


def test_p2_a_lineage_that_returns_to_epochs_which_a_sink_took_back_publishes_them_again(
    place: Place, table: TableSink
) -> None:
    published_history(place, table, 4)  # 2, 3, 4, 5
    fork = place.open(origin=Origin(epoch=3), rollback=RollbackPolicy.ALLOW)  # 6
    publisher = publish(fork, table)
    for _ in range(2):
        place.commit(fork, sinks=("table",))  # 7, 8
    publisher.publish_pending()
    assert list(table.rows) == [2, 3, 7, 8]
    publish(place.open(origin=Origin(epoch=5), rollback=RollbackPolicy.ALLOW), table)  # 9
    assert list(table.rows) == [2, 3, 4, 5]
    with pytest.raises(RollbackError, match="epochs 4 to 5"):
        place.open(origin=Origin(epoch=8))
    publish(place.open(origin=Origin(epoch=8), rollback=RollbackPolicy.ALLOW), table)
    assert list(table.rows) == [2, 3, 7, 8]


def test_p2_a_crash_after_a_sink_went_back_loses_nothing(place: Place, table: TableSink) -> None:
    published_history(place, table, 4)
    fork = place.open(origin=Origin(epoch=3), rollback=RollbackPolicy.ALLOW)
    publish(fork, table)

    def dies(_: int) -> None:
        raise SimulatedCrash

    table.before_publish = dies
    with pytest.raises(SimulatedCrash):
        publish(place.open(origin=Origin(epoch=5), rollback=RollbackPolicy.ALLOW), table)
    table.before_publish = lambda _: None
    assert list(table.rows) == [2, 3]
    publish(place.open(), table)
    assert list(table.rows) == [2, 3, 4, 5]


def test_p9_output_that_a_savepoint_cannot_bring_back_is_given_up_only_when_that_was_chosen(
    place: Place, table: TableSink, caplog: pytest.LogCaptureFixture
) -> None:
    published_history(place, table, 1)  # 2
    run = place.open()
    place.commit(run, sinks=("table",))  # 4 and 5, never published
    place.commit(run, sinks=("table",))
    run.add_request(pb.Request(savepoint=pb.SavepointRequest(name="monday")))
    place.commit(run, sinks=("table",))
    fork = place.open(origin=Origin(epoch=2), epochs=1)
    publisher = publish(fork, table)
    for _ in range(3):
        place.commit(fork)
        publisher.publish_pending()
    fork.clean_up()
    assert not caplog.messages
    with pytest.raises(SinkStartError, match="sink table is at epoch 2, and epochs 3 to 5 are no longer retained"):
        publish(place.open(origin=Origin(savepoint="monday")), table)
    chosen = {"table": SinkStart.ACCEPT_GAP}
    Publisher(place.open(origin=Origin(savepoint="monday")), [table], starts=chosen).open()
    assert "epochs 3 to 5 are no longer retained; continuing as chosen at the start" in caplog.text


def test_p5_a_new_runs_sweep_leaves_alone_what_readers_in_their_grace_need(place: Place) -> None:
    run = place.open(epochs=1, grace_s=60)
    records = [place.commit(run) for _ in range(4)]
    place.now_us += 50_000_000
    records.append(place.commit(run))
    place.now_us += 20_000_000  # the grace of all but the last record is over; that one dropped epoch 5
    assert records[-1].min_epoch == 6
    place.open(epochs=1, grace_s=60).clean_up()
    place.backend.prepare_checkpoint_load(records[3])
    assert place.store.head(names.record(4)) is None


def test_p5_a_damaged_record_leaves_in_its_order(place: Place) -> None:
    run = place.open(epochs=2)
    for _ in range(4):
        place.commit(run)
    place.store.put(names.record(5), b"damaged")
    place.store.put(names.record(4), b"damaged")
    run = place.open(epochs=2, damage=DamagePolicy.FALL_BACK)
    run._cleanups = 1  # not the first, which sweeps anyway
    for _ in range(4):
        place.commit(run)
    run.clean_up()
    left = [
        int(info.path.split("/")[1]) for info in place.store.list("checkpoints") if info.path.endswith("t.metadata")
    ]
    assert left == list(range(run.head.min_epoch, run.head.epoch + 1))
