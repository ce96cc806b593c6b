"""Live files and tombstones, decided on entries alone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statebed.format import checkpoint_pb2 as pb
from statebed.format.ranges import WHOLE_SPACE, owned_range
from statebed.state.live import tombstones
from statebed.state.live.files import BEGINNING, LiveFiles


def entry(path: str, *, times: tuple[int, int], sequence: int = 1, owned: pb.HashRange = WHOLE_SPACE) -> pb.FileEntry:
    return pb.FileEntry(
        path=path,
        owned=owned,
        min_key_hash=0,
        max_key_hash=(1 << 64) - 1,
        min_time_us=times[0],
        max_time_us=times[1],
        min_sequence=sequence,
        max_sequence=sequence,
    )


def live_with(*files: pb.FileEntry, next_sequence: int = 5) -> LiveFiles:
    return LiveFiles(owned=WHOLE_SPACE, next_sequence=next_sequence, files=files)


def part_of(live: LiveFiles) -> pb.TableSubtaskCheckpointMetadata:
    return pb.TableSubtaskCheckpointMetadata(
        owned=live.owned, next_sequence=live.next_sequence, files=live.files, tombstones=live.tombstones
    )


def test_files_that_hold_only_deleted_rows_leave_unread_and_need_no_tombstone() -> None:
    live = live_with(entry("old", times=(-20, -11)), entry("new", times=(0, 9))).delete_range(BEGINNING, -10)
    assert [file.path for file in live.files] == ["new"]
    assert not live.tombstones
    assert live.next_sequence == 5


def test_a_file_that_is_partly_deleted_stays_behind_a_tombstone() -> None:
    live = live_with(entry("both", times=(-20, 9))).delete_range(BEGINNING, 0)
    (tombstone,) = live.tombstones
    assert (tombstone.delete_time_range.start_us, tombstone.delete_time_range.end_us) == (-20, 0)
    assert (tombstone.sequence, live.next_sequence) == (5, 6)
    assert live.hidden_until(live.files[0]) == 0


def test_deleting_again_up_to_the_same_time_changes_nothing() -> None:
    live = live_with(entry("both", times=(-20, 9))).delete_range(BEGINNING, 0)
    assert live.delete_range(BEGINNING, 0) == live
    assert live.delete_range(BEGINNING, -5) == live


def test_a_later_deletion_replaces_the_earlier_tombstone_and_raises_its_sequence() -> None:
    live = (
        live_with(entry("both", times=(-20, 99)))
        .delete_range(BEGINNING, 0)
        .append(entry("more", times=(-5, 50), sequence=6))
    )
    later = live.delete_range(BEGINNING, 40)
    (tombstone,) = later.tombstones
    assert tombstone.sequence > 6
    assert tombstone.delete_time_range.end_us == 40


def test_a_tombstone_retires_with_the_last_file_it_could_hide_rows_of() -> None:
    live = live_with(entry("both", times=(-20, 9)), entry("new", times=(30, 40))).delete_range(BEGINNING, 0)
    assert len(live.tombstones) == 1
    assert not live.delete_range(BEGINNING, 20).tombstones


@settings(deadline=None)
@given(first=st.integers(1, 6), second=st.integers(1, 6))
def test_rescaling_and_back_lists_every_file_once_with_its_whole_range(first: int, second: int) -> None:
    live = live_with(entry("a", times=(-20, 9)), entry("b", times=(0, 9)), next_sequence=9).delete_range(BEGINNING, 0)
    parts = [part_of(live)]
    for parallelism in (first, second):
        parts = [
            part_of(LiveFiles.restore(parts, owned=owned_range(index, parallelism))) for index in range(parallelism)
        ]
        assert {part.next_sequence for part in parts} == {10}
    joined = LiveFiles.restore(parts, owned=WHOLE_SPACE)
    assert [file.path for file in joined.files] == ["a", "b"]
    assert all(file.owned == WHOLE_SPACE for file in joined.files)
    assert sum(one.owned.last - one.owned.first + 1 for one in joined.tombstones) == 1 << 64


def test_a_subtask_restores_only_files_with_hashes_that_it_owns() -> None:
    file = entry("low", times=(0, 9))
    file.max_key_hash = 100
    parts = [part_of(live_with(file))]
    assert LiveFiles.restore(parts, owned=owned_range(0, 2)).files
    assert not LiveFiles.restore(parts, owned=owned_range(1, 2)).files


def test_many_times_are_deleted_one_by_one_without_comparing_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0
    applies_to_all = tombstones._applies_to_all

    def counted(tombstone: pb.Tombstone, file: pb.FileEntry) -> bool:
        nonlocal compared
        compared += 1
        return applies_to_all(tombstone, file)

    monkeypatch.setattr(tombstones, "_applies_to_all", counted)
    files, times = 5, range(100, 500, 2)
    live = live_with(*(entry(f"{number}", times=(0, 999)) for number in range(files)))
    for time in times:
        live = live.delete_range(time, time + 1)
    assert len(live.tombstones) == len(times)
    assert compared <= 2 * files * len(times)
    live = live.delete_range(0, 100)  # hides the first rows, so the other ranges matter
    for time in times:
        live = live.delete_range(time + 1, time + 2)
    assert len(live.files) == files
    assert live.delete_range(500, 1000).files == ()
