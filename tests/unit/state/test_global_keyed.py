"""Global keyed tables: who may write, what is stored per epoch, deletions, merges, versions, damage."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.state.table_cluster import COUNTERS, JOB, OPERATOR, TABLE, Cluster, managers_at

from statebed.arrays.key_hash import hash_columns
from statebed.checkpoint.objects import fetch_subtask
from statebed.errors import CorruptObjectError, InputError, MigrationError, NotOwnerError
from statebed.format import checkpoint_pb2 as pb
from statebed.state import Codec, Compaction, TableManager, TaskInfo, global_table_config_with_version
from statebed.state.global_keyed.hash import hash_of
from statebed.state.global_keyed.table import MAX_FILES
from statebed.testing.faults import FaultStore, flip_byte


def files_of(cluster: Cluster, record: pb.CheckpointMetadata, index: int = 0) -> list[pb.FileEntry]:
    metadata = fetch_subtask(cluster.store, record.operators[0].subtasks[index])
    return list(metadata.tables[TABLE].subtasks[index].files)


@settings(max_examples=examples(60))
@given(st.one_of(st.binary(max_size=40), st.binary(min_size=60, max_size=140)))
def test_the_hash_of_one_key_is_that_of_a_column_of_keys(key: bytes) -> None:
    assert hash_of(key) == hash_columns([pa.array([key], pa.binary())])[0]


def test_a_view_is_like_a_dict() -> None:
    (view,) = Cluster().views()
    assert view.get("ann") is None
    view.insert("ann", 1)
    view.insert("ann", [2])
    assert view.get("ann") == [2]
    assert "ann" in view
    assert "bob" not in view
    assert (len(view), list(view.items())) == (1, [("ann", [2])])
    assert view.remove("ann") == [2]
    assert view.remove("ann") is None
    assert len(view) == 0


def test_none_is_a_value_and_no_deletion() -> None:
    cluster = Cluster()
    cluster.views()[0].insert("ann", None)
    cluster.commit()
    cluster.restart(1)
    assert list(cluster.views()[0].items()) == [("ann", None)]
    assert "ann" in cluster.views()[0]


def test_changing_a_value_that_was_read_does_not_change_the_table() -> None:
    (view,) = Cluster().views()
    value = [1]
    view.insert("ann", value)
    value.append(2)
    read = view.get("ann")
    assert read is not None
    read.append(3)
    assert view.get("ann") == [1]


def test_a_subtask_that_writes_a_key_of_another_is_refused_and_may_still_read_it() -> None:
    cluster = Cluster(2)
    owner = cluster.owner("ann")
    (other,) = [view for view in cluster.views() if not view.owns("ann")]
    with pytest.raises(NotOwnerError, match="'ann' belongs to another subtask"):
        other.insert("ann", 1)
    with pytest.raises(NotOwnerError, match="'ann' belongs to another subtask"):
        other.remove("ann")
    owner.insert("ann", 1)
    assert other.get("ann") is None  # not before the epoch is committed
    cluster.commit()
    assert other.get("ann") == 1
    owner.insert("ann", 2)
    assert (owner.get("ann"), other.get("ann")) == (2, 1)


def test_a_subtask_sees_a_deletion_of_another_that_a_merge_dropped_before_it_looked() -> None:
    cluster = Cluster(2)
    owner = cluster.owner("ann")
    (other,) = [view for view in cluster.views() if not view.owns("ann")]
    owner.insert("ann", 1)
    cluster.commit()
    assert other.get("ann") == 1
    owner.remove("ann")
    for manager in cluster.managers:
        manager.send(Compaction((TABLE,)))
    cluster.commit()
    assert other.get("ann") is None


def test_an_epoch_stores_what_changed_and_carries_the_other_files_forward() -> None:
    cluster = Cluster()
    (view,) = cluster.views()
    for number in range(1000):
        view.insert(number, "x" * 20)
    first = files_of(cluster, cluster.commit())
    view.insert(7, "y")
    second = files_of(cluster, cluster.commit())
    assert [file.rows for file in first] == [1000]
    assert second[:1] == first
    assert [file.rows for file in second] == [1000, 1]
    assert second[1].size < first[0].size / 3


def test_an_epoch_without_changes_writes_nothing_and_names_the_same_metadata() -> None:
    cluster = Cluster()
    cluster.views()[0].insert("ann", 1)
    first = cluster.commit()
    before = [info.path for info in cluster.store.list("")]
    (completed,) = cluster.store_epoch()
    assert completed.reference == first.operators[0].subtasks[0]
    assert completed.written_bytes == 0
    assert [info.path for info in cluster.store.list("")] == before


def test_p6_the_order_of_writes_inside_an_epoch_does_not_change_the_bytes() -> None:
    references = []
    for order in (range(100), reversed(range(100))):
        cluster = Cluster()
        (view,) = cluster.views()
        for number in order:
            view.insert(f"key {number}", number)
        view.insert("gone", 1)
        view.remove("gone")
        references.append(cluster.commit().operators[0].subtasks[0])
    assert references[0] == references[1]


def test_p8_the_files_are_parquet_with_encoded_keys_and_values_and_marked_deletions() -> None:
    cluster = Cluster()
    (view,) = cluster.views()
    view.insert("ann", 1)
    view.insert("bob", 2)
    cluster.commit()
    view.remove("ann")
    record = cluster.commit()
    file = files_of(cluster, record)[1]
    parquet = pq.ParquetFile(pa.BufferReader(cluster.store.get(file.path)))
    assert parquet.metadata.row_group(0).column(0).compression == "ZSTD"
    assert parquet.schema_arrow.names == ["key", "_seq", "_deleted", "_key_hash", "value"]
    (row,) = parquet.read().to_pylist()
    assert (Codec[Any]().decode(row["key"]), row["_deleted"], row["value"]) == ("ann", True, None)
    assert file.sort_order == pb.KEY_ONLY


@pytest.mark.parametrize("restored", [False, True])
def test_delete_put_delete_inside_one_epoch_leaves_the_key_deleted(restored: bool) -> None:
    cluster = Cluster()
    (view,) = cluster.views()
    view.insert("ann", 1)
    cluster.commit()
    assert view.remove("ann") == 1
    view.insert("ann", 2)
    assert view.remove("ann") == 2
    cluster.commit()
    if restored:
        cluster.restart(1)
    assert "ann" not in cluster.views()[0]


def test_delete_then_put_inside_one_epoch_keeps_the_put() -> None:
    cluster = Cluster()
    (view,) = cluster.views()
    view.insert("ann", 1)
    cluster.commit()
    view.remove("ann")
    view.insert("ann", 2)
    cluster.commit()
    cluster.restart(1)
    assert cluster.views()[0].get("ann") == 2


def test_a_deletion_survives_merges_that_do_not_reach_the_oldest_file() -> None:
    cluster = Cluster()
    (view,) = cluster.views()
    for number in range(5000):
        view.insert(number, f"{number:040d}")
    cluster.commit()
    view.remove(7)
    for number in range(3 * MAX_FILES):
        view.insert("always", number)
        record = cluster.commit()
        assert len(files_of(cluster, record)) <= MAX_FILES
    oldest, *others = files_of(cluster, record)
    assert oldest.rows == 5000  # the large file was never rewritten
    assert max(file.level for file in others) > 0  # though others were merged
    cluster.restart(1)
    assert cluster.views()[0].get(7) is None
    assert len(cluster.views()[0]) == 5000


def test_compact_data_leaves_one_file_without_old_rows_and_deletions() -> None:
    cluster = Cluster()
    (view,) = cluster.views()
    for number in range(3):
        view.insert("ann", number)
        view.insert("bob", number)
        cluster.commit()
    view.remove("bob")
    cluster.managers[0].send(Compaction((TABLE,)))
    (file,) = files_of(cluster, cluster.commit())
    assert (file.rows, file.level) == (1, 1)
    cluster.managers[0].send(Compaction())
    assert files_of(cluster, cluster.commit()) == [file]  # nothing is left to merge
    cluster.restart(1)
    assert list(cluster.views()[0].items()) == [("ann", 2)]


def test_a_table_that_nobody_opens_is_carried_forward_as_it_is() -> None:
    cluster = Cluster()
    cluster.views()[0].insert("ann", 1)
    first = files_of(cluster, cluster.commit())
    cluster.restart(1)
    cluster.managers[0].send(Compaction())
    assert files_of(cluster, cluster.commit()) == first
    assert cluster.views()[0].get("ann") == 1


def test_p7_a_flipped_byte_in_a_file_is_named_and_never_returned() -> None:
    cluster = Cluster()
    cluster.views()[0].insert("ann", 1)
    record = cluster.commit()
    (file,) = files_of(cluster, record)
    damaged = FaultStore(cluster.store)
    damaged.damage(file.path, flip_byte(file.size // 2))
    manager = TableManager(TaskInfo(JOB, OPERATOR), COUNTERS, damaged, restore_from=record)
    with manager, pytest.raises(CorruptObjectError, match=r"\.parquet"):
        manager.get_global_keyed_state(TABLE)


# ---- versions -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CountV1:
    VERSION: ClassVar[int] = 1
    PREVIOUS: ClassVar[Any] = None
    trips: int

    @classmethod
    def migrate(cls, previous: Any) -> "CountV1":
        raise AssertionError


@dataclass(frozen=True)
class CountV2:
    VERSION: ClassVar[int] = 2
    PREVIOUS: ClassVar[Any] = CountV1
    trips: float

    @classmethod
    def migrate(cls, previous: CountV1) -> "CountV2":
        return cls(previous.trips + 0.5)


@dataclass(frozen=True)
class CountV3:
    VERSION: ClassVar[int] = 3
    PREVIOUS: ClassVar[Any] = CountV2
    label: str

    @classmethod
    def migrate(cls, previous: CountV2) -> "CountV3":
        return cls(f"{previous.trips}")


def versioned(version: int) -> dict[str, pb.TableConfig]:
    return global_table_config_with_version(TABLE, "", version)


def cluster_of_version_1() -> Cluster:
    cluster = Cluster(2, versioned(1))
    cluster.views(key_type=int, value_type=CountV1)
    for number in range(20):
        view = next(view for view in cluster.views(key_type=int, value_type=CountV1) if view.owns(number))
        view.insert(number, CountV1(number))
    cluster.commit()
    return cluster


def test_load_with_version_migrates_in_steps_and_stores_the_new_version() -> None:
    cluster = cluster_of_version_1()
    cluster.configs = versioned(3)
    cluster.restart(3)
    expected = {number: CountV3(f"{number + 0.5}") for number in range(20)}
    for view in cluster.views(key_type=int, value_type=CountV3):
        assert dict(view.items()) == expected
    record = cluster.commit()
    for index in range(3):
        metadata = fetch_subtask(cluster.store, record.operators[0].subtasks[index])
        assert metadata.tables[TABLE].config.state_version == 3
        (file,) = files_of(cluster, record, index)
        assert (
            pq.read_metadata(pa.BufferReader(cluster.store.get(file.path))).metadata[b"statebed.state_version"] == b"3"
        )
    cluster.restart(2)
    for view in cluster.views(key_type=int, value_type=CountV3):
        assert dict(view.items()) == expected


def test_a_table_that_nobody_opens_keeps_its_version_and_can_be_migrated_later() -> None:
    cluster = cluster_of_version_1()
    cluster.configs = versioned(2)
    cluster.restart(1)
    cluster.commit()
    cluster.configs = versioned(3)
    cluster.restart(2)
    for view in cluster.views(key_type=int, value_type=CountV3):
        assert view.get(1) == CountV3("1.5")


def test_a_missing_step_is_refused_before_any_data_file_is_read() -> None:
    cluster = cluster_of_version_1()
    store = FaultStore(cluster.store)
    (manager,) = managers_at(store, cluster.run.head, 1, versioned(2))
    with manager, pytest.raises(MigrationError, match="no migration from version 1"):
        manager.get_global_keyed_state(TABLE, key_type=int, value_type=int)
    assert not [operation for operation in store.log if operation.path.endswith(".parquet")]


def test_a_newer_version_is_refused_when_the_manager_is_made() -> None:
    cluster = cluster_of_version_1()
    with pytest.raises(MigrationError, match="version 1"):
        managers_at(cluster.store, cluster.run.head, 1, versioned(0))


def test_a_type_of_another_version_than_the_table_is_refused() -> None:
    cluster = Cluster(1, versioned(2))
    with pytest.raises(InputError, match="version=3"):
        cluster.views(key_type=int, value_type=CountV3)


def test_a_table_in_use_keeps_its_types() -> None:
    cluster = Cluster()
    cluster.views(key_type=str, value_type=int)
    with pytest.raises(InputError, match="the same types"):
        cluster.views()
