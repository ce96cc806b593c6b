"""A start that would lose epochs of a sink is refused, and says which; the user can choose what to do instead."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from unit.checkpoint.place import JOB, MailSink, Place, TableSink

from statebed.checkpoint import (
    CheckpointLog,
    Origin,
    Publication,
    Publisher,
    Rebuilt,
    RollbackPolicy,
    Run,
    SinkIdentity,
    SinkPosition,
    SinkStart,
)
from statebed.errors import InputError, SinkError, SinkStartError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.digest import crc32c
from statebed.inspect.given_up import given_up_lines, given_up_rows
from statebed.protocol.sink_history import GivenUpEpochs
from statebed.storage import MemoryStore
from statebed.testing.faults import Fault, FaultStore, Operation, SimulatedCrash


@dataclass
class PlacedSink(TableSink):
    """A table that says where it is and can be looked at without being opened."""

    target: str = "here"
    opened: list[int] = field(default_factory=list)

    @property
    def identity(self) -> SinkIdentity:
        return SinkIdentity(kind="table", target=self.target, keeps_position=True)

    def peek(self) -> SinkPosition | None:
        return self.position

    def open(self, run: int) -> SinkPosition | None:
        self.opened.append(run)
        return super().open(run)


@dataclass
class PlacedMail(MailSink):
    """A sink without position that says where it sends to."""

    target: str = "here"

    @property
    def identity(self) -> SinkIdentity:
        return SinkIdentity(kind="mail", target=self.target)


def begin(run: Run, *sinks: TableSink | MailSink, **choices: object) -> Publisher:
    publisher = Publisher(run, sinks, **choices)  # type: ignore[arg-type]
    publisher.open()
    return publisher


def history(place: Place, *sinks: TableSink | MailSink, epochs: int, retained: int = 3) -> None:
    """Commit and publish this many epochs in one run: 2, 3, ..."""
    run = place.open(epochs=retained)
    publisher = begin(run, *sinks)
    for _ in range(epochs):
        place.commit(run, sinks=tuple(sink.sink_id for sink in sinks))
        publisher.publish_pending()
        run.clean_up()


def backup(sink: PlacedSink, epoch: int) -> PlacedSink:
    """The sink as it was after the epoch."""
    rows = {number: row for number, row in sink.rows.items() if number <= epoch}
    return PlacedSink(sink.sink_id, position=SinkPosition(1, epoch), rows=rows)


@pytest.fixture
def sink() -> PlacedSink:
    return PlacedSink("table")


def test_a_sink_behind_the_retained_log_is_refused_with_the_epochs_that_are_gone(
    place: Place, sink: PlacedSink
) -> None:
    history(place, sink, epochs=16)
    old = backup(sink, 4)
    with pytest.raises(SinkStartError, match="is at epoch 4, and epochs 5 to 14 are no longer retained") as refused:
        begin(place.open(), old)
    assert "'accept_gap'" in refused.value.fix
    assert "rebuild" not in refused.value.fix  # its results cannot be computed from state
    assert list(old.rows) == [2, 3, 4]
    assert not old.opened  # refused before it was fenced


def test_a_sink_behind_that_needs_only_retained_epochs_gets_them(place: Place, sink: PlacedSink) -> None:
    history(place, sink, epochs=8)
    old = backup(sink, 6)
    begin(place.open(), old)
    assert old.rows == sink.rows


def test_a_sink_that_is_behind_only_by_epochs_without_rows_goes_on(place: Place, sink: PlacedSink) -> None:
    history(place, sink, epochs=2)
    run = place.open(epochs=2)
    publisher = begin(run, sink)
    for _ in range(6):
        place.now_us += 1
        entry = pb.SinkEntry(sink_id="table", operator_id="quiet")
        draft = place.draft(run, "x")
        run.commit(type(draft)(**{**draft.__dict__, "sinks": [entry]}))
        publisher.publish_pending()
    old = PlacedSink("table", position=SinkPosition(1, 3), rows=dict(sink.rows))
    begin(place.open(), old)


def test_accepting_the_gap_publishes_what_is_retained_and_is_remembered(place: Place, sink: PlacedSink) -> None:
    history(place, sink, epochs=16)
    old = backup(sink, 4)
    run = place.open()
    begin(run, old, starts={"table": SinkStart.ACCEPT_GAP})
    assert list(old.rows) == [2, 3, 4, 15, 16, 17]
    place.commit(run, sinks=("table",))
    begin(place.open(), old)
    assert 19 in old.rows
    assert losses(place) == ["sink table lacks output of epochs 5 to 14, which was given up with 'accept_gap'"]


def losses(place: Place) -> list[str]:
    """Return the lines about rows that sinks lack."""
    log = CheckpointLog(place.store, JOB)
    head = log.head()
    assert head is not None
    return given_up_lines(log, head)


def test_an_empty_sink_is_refused_though_markers_say_that_it_has_everything(place: Place, sink: PlacedSink) -> None:
    history(place, sink, epochs=16)
    with pytest.raises(SinkStartError, match="holds nothing at its target, though epochs up to 17 were published"):
        begin(place.open(), PlacedSink("table"))


def test_a_sink_that_was_made_again_by_a_refused_start_is_still_refused(place: Place, sink: PlacedSink) -> None:
    history(place, sink, epochs=16)
    made = PlacedSink("table", position=SinkPosition(run=18, epoch=0))
    place.open()
    with pytest.raises(SinkStartError, match="holds nothing"):
        begin(place.open(), made)


def test_a_sink_with_another_target_is_refused_and_the_old_one_named(place: Place, sink: PlacedSink) -> None:
    history(place, sink, epochs=4)
    with pytest.raises(SinkStartError, match=r"before, it wrote to table here") as refused:
        begin(place.open(), PlacedSink("table", target="there"))
    assert "'start_empty'" in refused.value.fix


def test_starting_empty_goes_on_with_new_epochs_and_is_remembered_before_any_row_came(
    place: Place, sink: PlacedSink
) -> None:
    history(place, sink, epochs=16)
    new = PlacedSink("table", target="there")
    run = place.open()
    begin(run, new, starts={"table": SinkStart.START_EMPTY})
    assert new.rows == {}
    run.commit(run.carry_over())
    begin(place.open(), new)
    assert new.rows == {}


def test_what_was_never_published_comes_first_when_a_sink_starts_empty(place: Place, sink: PlacedSink) -> None:
    history(place, sink, epochs=5)
    run = place.open()
    place.commit(run, sinks=("table",))
    new = PlacedSink("table", target="there")
    begin(place.open(), new, starts={"table": SinkStart.START_EMPTY})
    assert list(new.rows) == [8]


def test_a_moved_sink_that_still_has_its_rows_goes_on(place: Place, sink: PlacedSink) -> None:
    history(place, sink, epochs=5)
    begin(place.open(), PlacedSink("table", target="there", position=sink.position, rows=sink.rows))


def test_rebuilding_publishes_all_epochs_again_while_they_are_retained(place: Place, sink: PlacedSink) -> None:
    history(place, sink, epochs=5, retained=10)
    new = PlacedSink("table")
    begin(place.open(), new, starts={"table": SinkStart.REBUILD})
    assert new.rows == sink.rows


def test_rebuilding_writes_finished_results_when_epochs_are_gone(place: Place, sink: PlacedSink) -> None:
    history(place, sink, epochs=16)

    @contextlib.contextmanager
    def rebuild(record: pb.CheckpointMetadata) -> Iterator[Rebuilt]:
        store = MemoryStore()
        store.put("all", b"results")
        assert record.base == 17
        yield Rebuilt((pb.OutboxFile(path="all", size=7, rows=1, crc32c=crc32c(b"results")),), store)

    old = backup(sink, 4)
    begin(place.open(), old, starts={"table": SinkStart.REBUILD}, rebuilds={"table": rebuild})
    assert old.rows == {17: "results"}
    begin(place.open(), old)


def test_a_choice_that_is_not_needed_changes_nothing(place: Place, sink: PlacedSink) -> None:
    history(place, sink, epochs=5)
    rows = dict(sink.rows)
    for choice in SinkStart:
        begin(place.open(), sink, starts={"table": choice})
    assert sink.rows == rows


def test_rebuilding_results_that_only_grow_is_refused_with_the_reason(place: Place, sink: PlacedSink) -> None:
    history(place, sink, epochs=16)
    with pytest.raises(SinkStartError, match="'rebuild' is not possible here: append-only results"):
        begin(place.open(), backup(sink, 4), starts={"table": SinkStart.REBUILD})


def test_a_sink_that_left_with_undelivered_epochs_is_refused_until_it_is_abandoned(
    place: Place, sink: PlacedSink, mail: MailSink
) -> None:
    run = place.open()
    place.commit(run, sinks=("mail", "table"))
    place.commit(run, sinks=("mail", "table"))
    with pytest.raises(
        SinkStartError, match=r"no longer has the sink mail, which is still missing 2 epochs \(2 to 3\)"
    ):
        begin(place.open(), sink)
    assert not sink.opened
    run = place.open(epochs=1)
    begin(run, sink, abandon=["mail"])
    place.commit(run, sinks=("table",))
    later = place.open()
    begin(later, sink)  # it is remembered
    assert "mail" not in later.waiting_epochs()


def test_a_sink_that_comes_back_is_refused_with_the_epochs_that_it_missed(place: Place, sink: PlacedSink) -> None:
    other = PlacedSink("other")
    history(place, sink, other, epochs=2)
    run = place.open()
    publisher = begin(run, other)
    for _ in range(3):
        place.commit(run, sinks=("other",))
        publisher.publish_pending()
    with pytest.raises(SinkStartError, match="was not part of the job in epochs 5 to 7; it holds epochs up to 3"):
        begin(place.open(), sink, other)
    run = place.open()
    begin(run, sink, other, starts={"table": SinkStart.ACCEPT_GAP})
    place.commit(run, sinks=("other", "table"))
    begin(place.open(), sink, other)
    assert sorted(sink.rows) == [2, 3, 10]


def test_a_sink_without_position_that_gets_another_target_is_refused(place: Place) -> None:
    history(place, PlacedMail("mail"), epochs=4)
    moved = PlacedMail("mail", target="there")
    with pytest.raises(SinkStartError, match="has another target: epochs up to 5 were published to mail here"):
        begin(place.open(), moved)
    begin(place.open(), moved, starts={"mail": SinkStart.START_EMPTY})
    assert moved.sent == []


def test_a_savepoint_older_than_what_the_sink_lacks_is_refused(place: Place, sink: PlacedSink) -> None:
    run = place.open(epochs=2)
    publisher = begin(run, sink)
    for number in range(12):
        if number == 6:
            run.add_request(pb.Request(savepoint=pb.SavepointRequest(name="monday")))
        place.commit(run, sinks=("table",))
        publisher.publish_pending()
    options = {"origin": Origin(savepoint="monday"), "rollback": RollbackPolicy.ALLOW}
    with pytest.raises(SinkStartError, match="is at epoch 3, and epochs 4 to 7 are no longer retained"):
        begin(place.open(**options), backup(sink, 3))  # type: ignore[arg-type]


def test_a_sink_that_holds_epochs_of_another_log_is_refused(place: Place) -> None:
    run = place.open()
    place.commit(run)
    with pytest.raises(SinkStartError, match="holds epoch 9 of run 1, which this job did not publish to it"):
        begin(place.open(), PlacedSink("table", position=SinkPosition(1, 9)))
    with pytest.raises(SinkStartError, match="holds epoch 2 of run 2"):
        begin(place.open(), PlacedSink("table", position=SinkPosition(2, 2)))  # 2 is an epoch here, no run


def test_a_table_of_another_job_of_the_same_name_is_refused(place: Place, sink: PlacedSink) -> None:
    other = Place()
    history(other, sink, epochs=3)
    run = place.open()
    for _ in range(6):
        place.commit(run, sinks=("table",))
    with pytest.raises(SinkStartError, match="holds epoch 4 of run 1, which this job did not publish"):
        begin(place.open(), sink)  # this job has published nothing yet
    unknown = Place()
    history(unknown, PlacedSink("mine"), epochs=9)
    with pytest.raises(SinkStartError, match="holds epoch 4 of run 1, which this job did not publish"):
        begin(unknown.open(), sink, PlacedSink("mine", position=SinkPosition(1, 10)))  # it never had this sink


def test_a_target_that_was_moved_from_an_old_backup_is_refused(place: Place, sink: PlacedSink) -> None:
    history(place, sink, epochs=5, retained=10)
    old = backup(sink, 3)
    old.target = "there"
    with pytest.raises(SinkStartError, match="another target, which is at epoch 3: epochs up to 6 were published to"):
        begin(place.open(), old)


def test_retention_keeps_what_a_sink_lacks_across_runs_that_do_not_know_the_sink(
    place: Place, sink: PlacedSink
) -> None:
    run = place.open(epochs=1)
    place.commit(run, sinks=("table",))
    for _ in range(4):  # tools open runs of their own, without sinks
        tool = place.open(epochs=1)
        tool.commit(tool.carry_over())
        tool.clean_up()
    begin(place.open(), sink)
    assert list(sink.rows) == [2]


def test_records_written_before_histories_existed_still_open(place: Place, sink: PlacedSink) -> None:
    history(place, sink, epochs=3)
    run = place.open()
    run.head.ClearField("sink_histories")
    begin(run, sink)
    assert sorted(sink.rows) == [2, 3, 4]


def test_choices_for_sinks_that_the_job_does_not_have_are_refused(place: Place, sink: PlacedSink) -> None:
    run = place.open()
    with pytest.raises(InputError, match="sinks= names 'other'"):
        Publisher(run, [sink], starts={"other": SinkStart.REBUILD})
    with pytest.raises(InputError, match="abandon= names 'table', which the job still writes to"):
        Publisher(run, [sink], abandon=["table"])


def test_a_preview_finds_the_same_refusals_and_writes_nothing(place: Place, sink: PlacedSink) -> None:
    history(place, sink, epochs=16)
    before = place.contents()
    with pytest.raises(SinkStartError, match="epochs 5 to 14"):
        Publisher(Run.preview(place.store, "job"), [backup(sink, 4)]).check()
    assert place.contents() == before


@dataclass
class RefusingSink(PlacedSink):
    """A table with a constraint that the rows of one epoch break."""

    refused: int = 3

    @property
    def written(self) -> list[int]:
        return [epoch for epoch, row in self.rows.items() if row]

    def publish(self, publication: Publication) -> None:
        if publication.epoch == self.refused and publication.files:
            raise SinkError("the table refuses a row", fix="change the constraint")
        super().publish(publication)


@dataclass
class RefusingMail(PlacedMail):
    """A sink without position that fails for the rows of one epoch."""

    refused: int = 3

    @property
    def written(self) -> list[int]:
        return self.sent

    def publish(self, publication: Publication) -> None:
        if not publication.files:
            return
        if publication.epoch == self.refused:
            raise SinkError("the receiver refuses a row", fix="ask the receiver")
        super().publish(publication)


@pytest.mark.parametrize("sink", [RefusingSink("table"), RefusingMail("table")])
def test_an_epoch_that_a_sink_refuses_is_given_up_on_request_alone(
    place: Place, sink: RefusingSink | RefusingMail, caplog: pytest.LogCaptureFixture
) -> None:
    run = place.open()
    publisher = begin(run, sink)
    for _ in range(3):
        place.commit(run, sinks=("table",))
    for publish in (publisher.publish_pending, lambda: begin(place.open(), sink)):
        with pytest.raises(SinkError, match="refuses a row") as refused:
            publish()
        assert "job.start(skip={'table': 3}), or statebed sql --skip table=3" in refused.value.fix
    run = place.open()
    begin(run, sink, skip={"table": 3})
    assert "does not get the" in caplog.text
    assert sink.written == [2, 4]
    place.commit(run, sinks=("table",))
    begin(place.open(), sink)  # the choice is not needed again
    assert sink.written == [2, 4, run.head.epoch]
    run = place.open()
    (history,) = run.head.sink_histories
    assert (history.epochs_given_up, history.rows_given_up, history.last_given_up) == (1, 1, 3)


def refused_epoch(place: Place, sink: RefusingSink | RefusingMail) -> None:
    """Commit the epochs 2 to 4, of which the sink refuses the second."""
    run = place.open()
    publisher = begin(run, sink)
    for _ in range(3):
        place.commit(run, sinks=("table",))
    with pytest.raises(SinkError):
        publisher.publish_pending()


@pytest.mark.parametrize("sink", [RefusingSink("table"), RefusingMail("table")])
def test_rows_given_up_are_counted_once_whenever_the_process_dies(
    place: Place, sink: RefusingSink | RefusingMail
) -> None:
    """The process dies between the sink's commit and the marker, or before a record counts the rows."""
    refused_epoch(place, sink)
    marker = names.published(3, "table")

    def crash(operation: Operation) -> Fault | None:
        return Fault.CRASH_BEFORE if operation.verb.writes and operation.path.endswith(marker) else None

    dying = place.open(through=FaultStore(place.disk, crash))
    with pytest.raises(SimulatedCrash):
        begin(dying, sink, skip={"table": 3})
    begin(place.open(), sink, skip={"table": 3})
    log = CheckpointLog(place.store, JOB)
    for _ in range(3):
        head = log.head()
        assert head is not None
        assert given_up_rows(log, head) == {"table": GivenUpEpochs(epochs=1, rows=1, last=3)}
        run = place.open()
        begin(run, sink)
        place.commit(run, sinks=("table",))


def test_a_sink_that_was_rebuilt_lacks_nothing(place: Place) -> None:
    sink = RefusingSink("table")
    refused_epoch(place, sink)
    run = place.open()
    begin(run, sink, skip={"table": 3})
    place.commit(run, sinks=("table",))
    assert losses(place) == ["sink table lacks 1 rows of epoch 3, which were given up with skip="]
    anew = PlacedSink("table")
    run = place.open()
    begin(run, anew, starts={"table": SinkStart.REBUILD})
    assert 3 in anew.rows
    place.commit(run, sinks=("table",))
    assert not losses(place)


def test_rows_are_not_given_up_for_a_target_that_fails_for_any_row(place: Place) -> None:
    """The advice would only lose rows if the disk is full."""
    sink = RefusingSink("table")
    failure = SinkError("the disk is full", fix="make room")
    failure.is_of_target = True

    def fail(_: int) -> None:
        raise failure

    run = place.open()
    publisher = begin(run, sink)
    place.commit(run, sinks=("table",))
    sink.before_publish = fail
    with pytest.raises(SinkError) as raised:
        publisher.publish_pending()
    assert raised.value.fix == "make room"


def test_an_epoch_that_was_given_up_and_is_published_after_all_is_not_counted(place: Place) -> None:
    sink = RefusingSink("table")
    refused_epoch(place, sink)
    begin(place.open(), sink, skip={"table": 3})
    sink.refused, sink.position = 0, SinkPosition(1, 2)  # restored from a backup, with another constraint
    begin(place.open(), sink)
    assert sink.written == [2, 3, 4]
    log = CheckpointLog(place.store, JOB)
    head = log.head()
    assert head is not None
    assert not given_up_rows(log, head)


@pytest.mark.parametrize("choices", [{}, {"starts": {"table": SinkStart.REBUILD}}])
def test_p9_a_choice_to_skip_that_stays_in_the_program_gives_up_no_epoch_that_the_sink_had(
    place: Place, choices: dict[str, object]
) -> None:
    """The target is restored from a backup that is older than the epoch which was given up, or is lost."""
    sink = RefusingSink("table", refused=5)
    run = place.open()
    publisher = begin(run, sink)
    for _ in range(6):
        place.commit(run, sinks=("table",))
    with pytest.raises(SinkError):
        publisher.publish_pending()
    begin(place.open(), sink, skip={"table": 5})
    assert sink.written == [2, 3, 4, 6, 7]
    if choices:
        sink = RefusingSink("table", refused=5)
    else:
        sink.position, sink.rows = SinkPosition(1, 2), {2: sink.rows[2]}
    run = place.open()
    begin(run, sink, skip={"table": 5}, **choices)
    assert sink.written == [2, 3, 4, 6, 7]
    place.commit(run, sinks=("table",))
    (history,) = place.open().head.sink_histories
    assert (history.epochs_given_up, history.rows_given_up, history.last_given_up) == (1, 1, 5)


def test_a_choice_to_skip_gives_up_all_epochs_that_the_sink_never_had(place: Place) -> None:
    sink = RefusingSink("table", refused=3)
    refused_epoch(place, sink)
    begin(place.open(), sink, skip={"table": 4})
    assert sink.written == [2]
    sink.position = SinkPosition(1, 2)  # restored from a backup
    begin(place.open(), sink, skip={"table": 4})
    assert sink.written == [2]


def test_epochs_to_skip_are_those_of_sinks_and_epochs_that_exist(place: Place, sink: PlacedSink) -> None:
    history(place, sink, epochs=2)
    with pytest.raises(InputError, match="skip= names 'other'"):
        Publisher(place.open(), [sink], skip={"other": 2})
    with pytest.raises(InputError, match="skip= names epoch 9 for the sink table, but the newest epoch is 3"):
        Publisher(place.open(), [sink], skip={"table": 9})


def test_a_sink_that_a_job_no_longer_has_is_named_once(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is lost, but its table does not grow any more."""
    gone, kept = PlacedSink("old", target="/tables/old"), PlacedSink("new", target="/tables/new")
    history(place, gone, kept, epochs=3)
    caplog.clear()
    run = place.open()
    publisher = begin(run, kept)
    said = "the job no longer writes to sink old (/tables/old), which keeps what it has"
    assert said in caplog.messages
    place.commit(run, sinks=("new",))
    publisher.publish_pending()
    caplog.clear()
    begin(place.open(), kept)
    assert said not in caplog.messages
