"""Migration: files of older columns and values of older versions are written anew, once, and nothing else."""

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from maintained_job import JOB, TABLES, MaintainedJob, maintained_job

from statebed.checkpoint import CheckpointLog, EpochDraft, Run
from statebed.checkpoint.objects import fetch_subtask
from statebed.errors import InputError, MigrationError, UnknownTableError
from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.verification import verify_log
from statebed.maintain import OutdatedTable, find_outdated, load_type, migrate_offline
from statebed.state import (
    CommitData,
    CommitPhases,
    TableData,
    TableManager,
    TaskInfo,
    global_table_config_with_version,
    keyed_table_config,
    operator_entry,
    timestamp_table_config,
)
from statebed.storage import MemoryStore, ObjectStore
from statebed.testing.faults import Fault, FaultStore, SimulatedCrash


@dataclass(frozen=True)
class RiderV1:
    VERSION: ClassVar[int] = 1
    PREVIOUS: ClassVar[Any] = None
    name: str

    @classmethod
    def migrate(cls, previous: Any) -> "RiderV1":
        raise NotImplementedError


@dataclass(frozen=True)
class RiderV2:
    VERSION: ClassVar[int] = 2
    PREVIOUS: ClassVar[Any] = RiderV1
    name: str
    trips: int

    @classmethod
    def migrate(cls, previous: RiderV1) -> "RiderV2":
        return cls(previous.name, trips=len(previous.name))


NEW_COLUMNS = {
    "totals": {
        "counts": keyed_table_config(
            "counts",
            "",
            ["item"],
            pa.schema([("item", pa.int64()), ("n", pa.int64()), ("note", pa.string())]),
            defaults={"note": "none"},
        )
    },
    "minutes": {
        "orders": timestamp_table_config(
            "orders",
            "",
            dt.timedelta(days=1),
            generational=False,
            schema=pa.schema([("item", pa.int64()), ("n", pa.int64()), ("note", pa.string())]),
            keys=["item"],
            bin_width=dt.timedelta(minutes=1),
        )
    },
}


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[MaintainedJob]:
    """Files of epochs 2 to 4, then an epoch of a program with one column more in two tables."""
    with maintained_job() as made:
        made.open()
        for _ in range(2):
            made.epoch()
        made.epoch(edits=made.merged())
        for operator, tables in NEW_COLUMNS.items():
            for table, config in tables.items():
                monkeypatch.setitem(TABLES[operator], table, config)
        entries = []
        for operator in TABLES:
            done = []
            for manager in made.managers(operator, made.run.head):
                with manager:
                    done.append(manager.checkpoint(made.run.next_epoch).result(60))
            entries.append(operator_entry(done))
        record = made.run.commit(EpochDraft(operators=entries, parallelism=2))
        made.states[record.epoch] = made.states[4]
        yield made


def log_of(job: MaintainedJob) -> CheckpointLog:
    return CheckpointLog(job.store, JOB, job.environment)


def test_files_of_older_columns_are_written_anew_and_mean_the_same(job: MaintainedJob) -> None:
    found = find_outdated(log_of(job))
    assert [(one.operator_id, one.table, one.files > 0) for one in found] == [
        ("totals", "counts", True),
        ("minutes", "orders", True),
    ]
    listed, done = migrate_offline(log_of(job))
    assert listed == found
    assert done.changed is not None
    assert find_outdated(log_of(job)) == []
    head = log_of(job).head()
    assert head is not None
    assert job.read(head) == job.states[4]
    assert verify_log(log_of(job)).whole
    assert migrate_offline(log_of(job))[1].changed is None
    for manager in job.managers("totals", head):
        with manager:
            notes = [note for rows in manager.get_keyed("counts").scan() for note in rows["note"].to_pylist()]
            assert set(notes) == {"none"}


# ---- values of global tables ---------------------------------------------------------------------------------------

TABLE = "riders"


def config_of(version: int) -> dict[str, pb.TableConfig]:
    return global_table_config_with_version(TABLE, "", version, phases=CommitPhases.TWO)


def stored_riders(store: ObjectStore, *, prepared: bytes = b"") -> CheckpointLog:
    """A job of two subtasks whose riders have version 1."""
    run = Run.open(store, JOB)
    done = []
    for index in range(2):
        with TableManager(TaskInfo(JOB, "riders", index, 2), config_of(1), store) as manager:
            view = manager.get_global_keyed_state(TABLE, key_type=str, value_type=RiderV1)
            for name in ("ada", "grace", "edsger", "barbara"):
                if view.owns(name):
                    view.insert(name, RiderV1(name))
            if prepared and index == 0:
                manager.send(TableData(TABLE, CommitData(prepared)))
            done.append(manager.checkpoint(run.next_epoch, 0, 70).result(60))
    run.commit(EpochDraft(operators=[operator_entry(done)], parallelism=2))
    return CheckpointLog(store, JOB)


def riders_in(log: CheckpointLog, kind: type, version: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for index in range(2):
        task = TaskInfo(JOB, "riders", index, 2)
        with TableManager(task, config_of(version), log.store, restore_from=log.head()) as manager:
            assert manager.watermark_us == 70
            found |= dict(manager.get_global_keyed_state(TABLE, key_type=str, value_type=kind).items())
    return found


def test_values_of_an_older_version_go_through_the_steps_of_their_type() -> None:
    log = stored_riders(MemoryStore(), prepared=b"a transaction that waits")
    types = {("riders", TABLE): RiderV2}
    assert find_outdated(log) == []
    assert find_outdated(log, types) == [OutdatedTable("riders", TABLE, versions=(1,), version=2)]
    _, done = migrate_offline(log, types=types)
    assert done.changed is not None
    assert find_outdated(log, types) == []
    assert riders_in(log, RiderV2, 2)["grace"] == RiderV2("grace", trips=5)
    assert len(riders_in(log, RiderV2, 2)) == 4
    head = log.head()
    assert head is not None
    (entry,) = head.operators
    parts = [fetch_subtask(log.store, reference) for reference in entry.subtasks]
    kept = [data.data for part in parts for one in part.tables[TABLE].subtasks.values() for data in one.commit_data]
    assert kept == [b"a transaction that waits"]
    assert verify_log(log).whole


def test_p2_a_migration_that_dies_at_any_write_leaves_all_values_of_one_version() -> None:
    types = {("riders", TABLE): RiderV2}
    counting = FaultStore(stored_riders(MemoryStore()).store)
    migrate_offline(CheckpointLog(counting, JOB), types=types)
    writes = [operation.number for operation in counting.log if operation.verb.writes]
    assert len(writes) > 4
    for number in writes:
        log = stored_riders(MemoryStore())
        with pytest.raises(SimulatedCrash):
            migrate_offline(CheckpointLog(FaultStore(log.store, {number: Fault.CRASH_BEFORE}), JOB), types=types)
        assert riders_in(log, RiderV1, 1)["grace"] == RiderV1("grace")
        migrate_offline(log, types=types)
        assert riders_in(log, RiderV2, 2)["grace"] == RiderV2("grace", trips=5)
        assert verify_log(log).whole


def test_types_that_lead_from_nowhere_are_refused_before_anything_is_written() -> None:
    log = stored_riders(MemoryStore())
    before = log.numbers()
    with pytest.raises(MigrationError, match="but this code only knows versions up to 0"):
        migrate_offline(log, types={("riders", TABLE): type("Older", (RiderV1,), {"VERSION": 0})})
    with pytest.raises(UnknownTableError, match="operator 'riders' of the job has no table 'nothing'"):
        migrate_offline(log, types={("riders", "nothing"): RiderV2})
    assert log.numbers() == before


def test_a_type_for_a_table_with_columns_is_refused(job: MaintainedJob) -> None:
    with pytest.raises(MigrationError, match="has columns, not values of a type"):
        find_outdated(log_of(job), {("totals", "counts"): RiderV2})


def test_types_are_found_by_module_and_name() -> None:
    assert load_type(f"{RiderV2.__module__}:RiderV2").__name__ == "RiderV2"
    with pytest.raises(InputError, match="cannot import the type 'json:Nothing'"):
        load_type("json:Nothing")
    with pytest.raises(InputError, match="cannot import the type"):
        load_type("")
    with pytest.raises(InputError, match="does not define how to migrate"):
        load_type("json:JSONDecoder")
