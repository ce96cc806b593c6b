"""The six methods of the backing store."""

import pytest
from unit.checkpoint.place import Place

from statebed.checkpoint import BackingStore, ParquetBackend, StateBackend
from statebed.errors import (
    BrokenLogError,
    CleanupError,
    CorruptObjectError,
    EpochNotRetainedError,
    FencedError,
    InputError,
    MissingFileError,
)
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names


def test_it_is_called_parquet_and_is_a_backing_store(place: Place) -> None:
    backend: BackingStore = place.backend
    assert backend.name() == "parquet"
    assert StateBackend is ParquetBackend


def test_load_checkpoint_metadata_gives_the_record_as_committed(place: Place) -> None:
    record = place.commit(place.open())
    loaded = place.backend.load_checkpoint_metadata("job", 2)
    assert loaded.nonce == record.nonce
    assert loaded.operators == record.operators
    with pytest.raises(EpochNotRetainedError):
        place.backend.load_checkpoint_metadata("job", 3)


def test_load_operator_metadata_unites_the_subtasks_that_the_record_names(place: Place) -> None:
    place.commit(place.open())
    found = place.backend.load_operator_metadata("job", "op", 2)
    assert found is not None
    assert (found.job_id, found.operator_id, found.epoch, found.parallelism) == ("job", "op", 2, 2)
    paths = {index: [file.path for file in part.files] for index, part in found.tables["t"].subtasks.items()}
    assert sorted(paths) == [0, 1]
    assert all(place.store.head(path) for files in paths.values() for path in files)
    assert found.tables["t"].config.name == "t"


def test_load_operator_metadata_resolves_epochs_that_carried_state_over(place: Place) -> None:
    run = place.open()
    place.commit(run)
    run.commit(run.carry_over())
    carried = place.backend.load_operator_metadata("job", "op", 3)
    original = place.backend.load_operator_metadata("job", "op", 2)
    assert carried is not None
    assert original is not None
    assert carried.tables == original.tables


def test_p3_metadata_that_lies_in_the_folder_but_is_not_named_is_not_seen(place: Place) -> None:
    run = place.open()
    place.subtask(place.store, 2, 5, "of another attempt")
    place.commit(run)
    found = place.backend.load_operator_metadata("job", "op", 2)
    assert found is not None
    assert sorted(found.tables["t"].subtasks) == [0, 1]


def test_load_operator_metadata_of_an_operator_that_the_record_does_not_name_is_none(place: Place) -> None:
    place.commit(place.open())
    assert place.backend.load_operator_metadata("job", "other", 2) is None


def named_files(place: Place, epoch: int) -> list[str]:
    found = place.backend.load_operator_metadata("job", "op", epoch)
    assert found is not None
    return [file.path for part in found.tables["t"].subtasks.values() for file in part.files]


def test_p7_prepare_names_a_missing_file(place: Place) -> None:
    record = place.commit(place.open())
    place.backend.prepare_checkpoint_load(record)
    for path in [*named_files(place, 2), record.operators[0].subtasks[1].path, record.outbox[0].path]:
        kept = place.store.get(path)
        place.store.delete(path)
        with pytest.raises(MissingFileError) as caught:
            place.backend.prepare_checkpoint_load(record)
        assert path in caught.value.where
        place.store.put(path, kept)


def test_p7_prepare_names_a_truncated_file(place: Place) -> None:
    record = place.commit(place.open())
    for path in [*named_files(place, 2), record.operators[0].subtasks[0].path, record.outbox[0].path]:
        kept = place.store.get(path)
        place.store.put(path, kept[:-1])
        with pytest.raises(CorruptObjectError) as caught:
            place.backend.prepare_checkpoint_load(record)
        assert path in caught.value.where
        place.store.put(path, kept)


def test_p7_prepare_names_subtask_metadata_with_any_flipped_byte(place: Place) -> None:
    record = place.commit(place.open())
    path = record.operators[0].subtasks[0].path
    kept = place.store.get(path)
    for offset in range(len(kept)):
        place.store.put(path, kept[:offset] + bytes([kept[offset] ^ 1]) + kept[offset + 1 :])
        with pytest.raises(CorruptObjectError) as caught:
            place.backend.prepare_checkpoint_load(record)
        assert path in caught.value.where


def test_p7_prepare_names_a_data_or_outbox_file_with_any_flipped_byte(place: Place) -> None:
    record = place.commit(place.open())
    for path in [*named_files(place, 2), record.outbox[0].path]:
        kept = place.store.get(path)
        for offset in range(len(kept)):
            place.store.put(path, kept[:offset] + bytes([kept[offset] ^ 1]) + kept[offset + 1 :])
            with pytest.raises(CorruptObjectError) as caught:
                place.backend.prepare_checkpoint_load(record)
            assert path in caught.value.where
        place.store.put(path, kept)
    place.backend.prepare_checkpoint_load(record)


def test_writing_the_same_metadata_again_gives_the_same_object(place: Place) -> None:
    first = place.subtask(place.store, 2, 0, "same")
    before = place.contents()
    assert place.subtask(place.store, 2, 0, "same") == first
    assert place.contents() == before


def following(record: pb.CheckpointMetadata, nonce: str) -> pb.CheckpointMetadata:
    new = pb.CheckpointMetadata()
    new.CopyFrom(record)
    new.epoch, new.previous, new.kind, new.nonce = record.epoch + 1, record.epoch, pb.EPOCH, nonce
    return new


def test_p3_write_checkpoint_metadata_has_one_winner_per_number(place: Place) -> None:
    head = place.open().head
    place.backend.write_checkpoint_metadata(following(head, "a"))
    place.backend.write_checkpoint_metadata(following(head, "a"))  # its own record: success
    with pytest.raises(FencedError):
        place.backend.write_checkpoint_metadata(following(head, "b"))
    assert place.backend.load_checkpoint_metadata("job", 2).nonce == "a"


def test_a_record_that_would_leave_a_gap_is_refused_before_it_is_written(place: Place) -> None:
    record = following(place.open().head, "a")
    record.epoch = 5
    before = place.contents()
    with pytest.raises(BrokenLogError, match="no record 4"):
        place.backend.write_checkpoint_metadata(record)
    assert place.contents() == before


def test_p3_records_without_nonce_cannot_both_win(place: Place) -> None:
    before = following(place.open().head, "")
    with pytest.raises(InputError, match="nonce"):
        place.backend.write_checkpoint_metadata(before)
    assert place.store.head(names.record(2)) is None


def test_p5_clean_up_without_licence_is_refused_and_deletes_nothing(place: Place) -> None:
    run = place.open()
    for _ in range(5):
        place.commit(run)
    before = place.contents()
    with pytest.raises(CleanupError, match="not below 4"):
        place.backend.cleanup_checkpoint(run.head, 1, 4)
    with pytest.raises(InputError, match="must not decrease"):
        place.backend.cleanup_checkpoint(run.head, 4, 1)
    assert place.contents() == before


def test_p5_a_licence_that_was_never_committed_is_none(place: Place) -> None:
    run = place.open()
    for _ in range(5):
        place.commit(run)
    forged = pb.CheckpointMetadata()
    forged.CopyFrom(run.head)
    forged.min_epoch = 6
    before = place.contents()
    with pytest.raises(CleanupError):
        place.backend.cleanup_checkpoint(forged, 1, 6)
    assert place.contents() == before


@pytest.mark.parametrize("old_min_epoch", [1, 4])
def test_p5_clean_up_deletes_from_the_oldest_on_wherever_it_is_told_to_begin(place: Place, old_min_epoch: int) -> None:
    run = place.open(epochs=2)
    for _ in range(6):
        place.commit(run)
    assert run.head.min_epoch == 6
    place.backend.cleanup_checkpoint(run.head, old_min_epoch, 6)
    left = {int(info.path.split("/")[1]) for info in place.store.list("checkpoints")}
    assert left == {6, 7}
    for epoch in (6, 7):
        place.backend.prepare_checkpoint_load(place.backend.load_checkpoint_metadata("job", epoch))


def test_p5_clean_up_with_an_unreadable_record_deletes_nothing(place: Place) -> None:
    run = place.open(epochs=2)
    for _ in range(6):
        place.commit(run)
    place.store.put(names.record(3), b"damaged")
    before = place.contents()
    with pytest.raises(CleanupError, match=r"\[3\]"):
        place.backend.cleanup_checkpoint(run.head, 1, 6)
    assert place.contents() == before
