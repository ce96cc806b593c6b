"""The manager of a subtask's tables: each step of a checkpoint, messages, restores, failures."""

import datetime as dt
import threading
from typing import Any

import pyarrow as pa
import pytest
from unit.state.table_cluster import COUNTERS, JOB, OPERATOR, TABLE, Cluster, managers_at

from statebed.checkpoint import EpochDraft
from statebed.checkpoint.objects import fetch_subtask
from statebed.errors import (
    CheckpointTimeoutError,
    CorruptObjectError,
    InputError,
    LostWriteError,
    MissingFileError,
    StoreUnavailableError,
    SubtaskError,
    UnknownTableError,
)
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.schema import same_schema, schema_from_bytes
from statebed.state import (
    Checkpoint,
    CheckpointCompleted,
    CheckpointMessage,
    Codec,
    CommitData,
    CommitPhases,
    KeyedData,
    ManagerOptions,
    RecordBatch,
    TableData,
    TableManager,
    TaskInfo,
    global_table_config,
    operator_entry,
)
from statebed.state.global_keyed.files import FILE_SCHEMA
from statebed.storage import MemoryStore, ObjectStore, ScopedStore
from statebed.testing.faults import Fault, FaultStore, Operation, Verb

TASK = TaskInfo(JOB, OPERATOR)
NOON = dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)
TWO_PHASES = global_table_config(TABLE, "", phases=CommitPhases.TWO)


def empty_store() -> ScopedStore:
    return ScopedStore(MemoryStore(), JOB)


def manager_on(store: ObjectStore, **more: Any) -> TableManager:
    return TableManager(TASK, more.pop("configs", COUNTERS), store, **more)


def encoded(value: Any) -> bytes:
    return Codec[Any]().encode_key(value)


# ---- the steps of a checkpoint ------------------------------------------------------------------------------


def test_step_1_and_2_each_table_is_serialised_and_uploaded_to_the_folder_of_the_epoch() -> None:
    store = empty_store()
    configs = COUNTERS | global_table_config("names", "Names") | global_table_config("unused", "")
    with manager_on(store, configs=configs) as manager:
        manager.get_global_keyed_state(TABLE).insert("ann", 1)
        manager.get_global_keyed_state("names").insert("ann", "Ann")
        manager.checkpoint(7).result(timeout=30)
    folder = f"{names.epoch_folder(7)}/data"
    assert [info.path.removeprefix(f"{folder}/").split(".")[0] for info in store.list(folder)] == [
        f"{OPERATOR}-{TABLE}-0",
        f"{OPERATOR}-names-0",
    ]


def test_step_3_files_byte_counts_rows_and_schemas_are_collected() -> None:
    store = empty_store()
    with manager_on(store) as manager:
        view = manager.get_global_keyed_state(TABLE)
        for number in range(10):
            view.insert(number, number)
        completed = manager.checkpoint(7, watermark=NOON).result(timeout=30)
    metadata = fetch_subtask(store, completed.reference)
    part = metadata.tables[TABLE].subtasks[0]
    (file,) = part.files
    assert metadata.tables[TABLE].config == COUNTERS[TABLE]
    assert store.head(file.path) is not None
    assert (part.bytes, part.rows) == (len(store.get(file.path)), 10)
    assert (completed.live_bytes, completed.written_bytes, completed.rows) == (part.bytes, part.bytes, 10)
    assert same_schema(schema_from_bytes(part.schemas[file.schema_id].arrow_ipc), FILE_SCHEMA)
    assert metadata.watermark_us == completed.watermark_us == 1_709_208_000_000_000


def test_step_4_the_metadata_is_written_after_the_data_and_read_back() -> None:
    store = FaultStore(empty_store())
    with manager_on(store) as manager:
        manager.get_global_keyed_state(TABLE).insert("ann", 1)
        completed = manager.checkpoint(7).result(timeout=30)
    steps = [(operation.verb, operation.path.rsplit(".", 1)[1]) for operation in store.log]
    assert steps == [
        (Verb.PUT, "parquet"),
        (Verb.GET, "parquet"),
        (Verb.PUT, "metadata"),
        (Verb.GET, "metadata"),
    ]
    assert store.log[-1].path == completed.reference.path


def test_step_4_metadata_that_does_not_read_back_is_not_acknowledged() -> None:
    told: list[CheckpointCompleted] = []
    store = FaultStore(empty_store(), lambda operation: Fault.FLIP_BYTE if operation.verb is Verb.GET else None)
    with manager_on(store, on_completed=told.append) as manager:
        with pytest.raises(LostWriteError):
            manager.checkpoint(7).result(timeout=30)
        assert manager.held_epochs == ()
    assert not told


def test_step_5_what_is_held_for_epochs_below_min_epoch_is_released() -> None:
    with manager_on(empty_store()) as manager:
        completed = [manager.checkpoint(epoch).result(timeout=30) for epoch in (2, 3, 4)]
        assert list(manager.held_epochs) == [2, 3, 4]
        assert manager.completed(3) == completed[1]
        manager.checkpoint(5, min_epoch=4).result(timeout=30)
        assert [manager.completed(epoch) for epoch in (2, 3)] == [None, None]
        manager.checkpoint(6).result(timeout=30)  # a licence that was given once stands
        assert list(manager.held_epochs) == [4, 5, 6]


def test_step_6_completion_is_notified_when_everything_is_durable() -> None:
    store = empty_store()
    told: list[tuple[CheckpointCompleted, int]] = []

    def notify(completed: CheckpointCompleted) -> None:
        told.append((completed, len(list(store.list("")))))

    with manager_on(store, on_completed=notify) as manager:
        manager.get_global_keyed_state(TABLE).insert("ann", 1)
        completed = manager.checkpoint(7, then_stop=True).result(timeout=30)
    assert told == [(completed, 2)]
    assert (completed.task, completed.epoch, completed.then_stop) == (TASK, 7, True)


def test_then_stop_takes_no_more_writes() -> None:
    with manager_on(empty_store()) as manager:
        view = manager.get_global_keyed_state(TABLE)
        manager.checkpoint(7, then_stop=True).result(timeout=30)
        with pytest.raises(InputError, match="no more writes"):
            view.insert("ann", 1)
        with pytest.raises(InputError, match="accepts no more writes: it was stopped"):
            manager.checkpoint(8)


# ---- asynchronous, with back-pressure -----------------------------------------------------------------------


class Gate:
    """Holds every upload until it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.reached = threading.Event()

    def hold(self, operation: Operation) -> None:
        if operation.verb is Verb.PUT:
            self.reached.set()
            assert self.opened.wait(30)


def test_writing_goes_on_while_a_checkpoint_is_stored_and_epochs_complete_in_order() -> None:
    gate, told = Gate(), list[int]()
    store = empty_store()
    slow = FaultStore(store, before=gate.hold)
    with manager_on(slow, on_completed=lambda completed: told.append(completed.epoch)) as manager:
        view = manager.get_global_keyed_state(TABLE)
        view.insert("ann", 1)
        first = manager.checkpoint(2)
        assert gate.reached.wait(30)
        view.insert("ann", 2)
        second = manager.checkpoint(3)
        view.insert("ann", 3)
        assert not first.done()
        gate.opened.set()
        references = [one.result(timeout=30).reference for one in (first, second)]
        assert told == [2, 3]
    for reference, value in zip(references, (1, 2), strict=True):
        record = pb.CheckpointMetadata(
            job_id=JOB, epoch=3, operators=[pb.OperatorEntry(operator_id=OPERATOR, subtasks=[reference])]
        )
        (restored,) = managers_at(store, record, 1)
        with restored:
            assert restored.get_global_keyed_state(TABLE).get("ann") == value


def test_too_many_checkpoints_under_way_wait_and_then_say_so() -> None:
    gate = Gate()
    options = ManagerOptions(max_pending=1, timeout_seconds=0.2)
    manager = manager_on(FaultStore(empty_store(), before=gate.hold), options=options)
    view = manager.get_global_keyed_state(TABLE)
    first = manager.checkpoint(2)
    view.insert("ann", 1)
    with pytest.raises(CheckpointTimeoutError, match="1 checkpoints are still under way"):
        manager.checkpoint(3)
    gate.opened.set()
    first.result(timeout=30)
    assert manager.checkpoint(3).result(timeout=30).rows == 1  # nothing was taken by the one that was refused
    manager.close()


def test_a_failed_upload_fails_this_checkpoint_and_every_later_one() -> None:
    store = FaultStore(empty_store(), {1: Fault.UNAVAILABLE})
    with manager_on(store) as manager:
        manager.get_global_keyed_state(TABLE).insert("ann", 1)
        with pytest.raises(StoreUnavailableError):
            manager.checkpoint(2).result(timeout=30)
        with pytest.raises(SubtaskError, match="earlier checkpoint"):
            manager.checkpoint(3)


@pytest.mark.parametrize(("epoch", "min_epoch"), [(5, 0), (4, 0), (7, 8)])
def test_numbers_of_epochs_grow_and_min_epoch_is_not_above_them(epoch: int, min_epoch: int) -> None:
    with manager_on(empty_store()) as manager:
        manager.checkpoint(5).result(timeout=30)
        with pytest.raises(InputError, match="cannot follow epoch 5"):
            manager.checkpoint(epoch, min_epoch)


def test_a_watermark_without_zone_is_refused() -> None:
    with manager_on(empty_store()) as manager, pytest.raises(InputError, match="time zone"):
        manager.checkpoint(2, watermark=NOON.replace(tzinfo=None))


# ---- messages -----------------------------------------------------------------------------------------------


def test_messages_write_delete_and_checkpoint() -> None:
    with manager_on(empty_store()) as manager:
        manager.send(TableData(TABLE, KeyedData(encoded("ann"), encoded(1))))
        manager.send(TableData(TABLE, KeyedData(encoded("bob"), encoded(2))))
        manager.send(TableData(TABLE, KeyedData(encoded("ann"), None)))
        assert list(manager.get_global_keyed_state(TABLE).items()) == [("bob", 2)]
        answer = manager.send(Checkpoint(CheckpointMessage(epoch=2, time=NOON, watermark=NOON, then_stop=True)))
        assert answer is not None
        assert answer.result(timeout=30).then_stop


def test_messages_that_a_table_cannot_take_are_refused() -> None:
    with manager_on(empty_store()) as manager:
        with pytest.raises(UnknownTableError, match="'nobody'"):
            manager.send(TableData("nobody", KeyedData(b"", b"")))
        with pytest.raises(CorruptObjectError):
            manager.send(TableData(TABLE, KeyedData(encoded("ann"), b"\xc1")))
        with pytest.raises(UnknownTableError, match="record batches"):
            manager.send(TableData(TABLE, RecordBatch(pa.record_batch({"key": [b""]}))))
        with pytest.raises(InputError, match="two-phase"):
            manager.send(TableData(TABLE, CommitData(b"prepared")))
        assert len(manager.get_global_keyed_state(TABLE)) == 0


@pytest.mark.parametrize("parallelism", [1, 2, 3, 5])
def test_commit_data_is_durable_with_its_epoch_and_falls_to_one_subtask_each(parallelism: int) -> None:
    cluster = Cluster(3, TWO_PHASES)
    for index, manager in enumerate(cluster.managers):
        manager.send(TableData(TABLE, CommitData(b"prepared by %d" % index)))
    answers = cluster.store_epoch()
    assert [answer.commit_data for answer in answers] == [((TABLE, b"prepared by %d" % index),) for index in range(3)]
    cluster.restart(parallelism)
    assert not [data for manager in cluster.managers for data in manager.commit_data(TABLE)]  # no record named it
    cluster.restart(3)
    for index, manager in enumerate(cluster.managers):
        manager.send(TableData(TABLE, CommitData(b"prepared by %d" % index)))
    cluster.commit()
    cluster.restart(parallelism)
    found = [data for manager in cluster.managers for data in manager.commit_data(TABLE)]
    assert found == [b"prepared by 0", b"prepared by 1", b"prepared by 2"]
    cluster.commit()
    cluster.restart(parallelism)
    assert not [data for manager in cluster.managers for data in manager.commit_data(TABLE)]  # it belonged to one epoch


# ---- restore ------------------------------------------------------------------------------------------------


def test_two_subtasks_a_kill_and_rescaling_2_to_3_to_1_keep_every_value() -> None:
    cluster = Cluster(2)
    expected: dict[Any, Any] = {}

    def write(numbers: range) -> None:
        for number in numbers:
            cluster.owner(number).insert(number, f"v{number}")
            expected[number] = f"v{number}"
        for number in numbers[::7]:
            assert cluster.owner(number).remove(number) == expected.pop(number)

    write(range(100))
    cluster.commit()
    cluster.owner("lost").insert("lost", 1)
    cluster.store_epoch()  # killed before the record
    for parallelism, numbers in ((3, range(50, 150)), (1, range(120, 200)), (2, range(10))):
        cluster.restart(parallelism)
        for view in cluster.views():
            assert dict(view.items()) == expected
        write(numbers)
        cluster.commit()
        cluster.run.clean_up()
    for view in cluster.views():
        assert dict(view.items()) == expected


def test_a_stored_table_that_is_not_registered_is_not_lost_silently() -> None:
    cluster = Cluster()
    cluster.commit()
    with pytest.raises(UnknownTableError, match="'counters'"):
        managers_at(cluster.store, cluster.run.head, 1, global_table_config("others", ""))


def test_a_record_of_another_job_is_refused() -> None:
    with pytest.raises(InputError, match="'other'"):
        manager_on(empty_store(), restore_from=pb.CheckpointMetadata(job_id="other", epoch=1))


def test_missing_metadata_is_named() -> None:
    cluster = Cluster()
    record = cluster.commit()
    cluster.store.delete(record.operators[0].subtasks[0].path)
    with pytest.raises(MissingFileError, match="operator-count-0"):
        managers_at(cluster.store, record, 1)


def test_a_record_at_another_parallelism_cannot_refresh() -> None:
    cluster = Cluster(2)
    record = cluster.commit()
    cluster.restart(1)
    with pytest.raises(InputError, match=r"subtasks \[0, 1\]"):
        cluster.managers[0].refresh(record)


def test_an_operator_entry_needs_one_answer_of_every_subtask() -> None:
    cluster = Cluster(2)
    answers = cluster.store_epoch()
    for wrong in ([], answers[:1], [*answers, answers[0]]):
        with pytest.raises(SubtaskError):
            operator_entry(wrong)
    assert [one.subtask_index for one in operator_entry(answers[::-1]).subtasks] == [0, 1]


def test_options_that_leave_no_way_are_refused() -> None:
    with pytest.raises(InputError):
        ManagerOptions(upload_threads=0)


def test_then_stop_marks_the_record_of_the_epoch_as_stopped() -> None:
    cluster = Cluster(2)
    completed = [manager.checkpoint(cluster.run.next_epoch, 0, None, True) for manager in cluster.managers]
    entry = operator_entry([one.result(timeout=30) for one in completed])
    record = cluster.run.commit(EpochDraft(operators=[entry]))
    assert record.status == pb.STOPPED
    assert cluster.run.commit(cluster.run.carry_over()).status == pb.COMPLETE


def test_an_epoch_after_which_only_some_subtasks_stop_is_complete() -> None:
    cluster = Cluster(2)
    first, second = cluster.managers
    epoch = cluster.run.next_epoch
    completed = [first.checkpoint(epoch, then_stop=True).result(30), second.checkpoint(epoch).result(30)]
    assert cluster.run.commit(EpochDraft(operators=[operator_entry(completed)])).status == pb.COMPLETE
