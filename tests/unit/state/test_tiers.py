"""Segments in their tiers: readable while they move, checked when read, bounded on local disk."""

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from unit.state.segment_rows import MINUTE, opened_tiers, rows, sequences, sorted_rows, spec

from statebed.errors import CorruptObjectError, InputError, MissingFileError, SpillError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.ranges import WHOLE_SPACE
from statebed.format.segment import encode_segment
from statebed.state.memory.controller import Purpose
from statebed.state.memory.sizes import held_bytes, root_buffers
from statebed.state.tiers import segments as segments_module
from statebed.state.tiers import shared_tiers as tiers_module
from statebed.state.tiers.segments import Segment
from statebed.state.tiers.selection import Selection
from statebed.state.tiers.shared_tiers import Tiers
from statebed.state.tiers.spill_files import ParquetFile, write_mapped, write_parquet
from statebed.state.tiers.spill_folder import SpillFolder
from statebed.state.tiers.tier import Tier
from statebed.storage.memory_store import MemoryStore

SELECTIONS = [
    Selection(),
    Selection(columns=("fare", "driver")),
    Selection(start_us=MINUTE, end_us=3 * MINUTE),
    Selection(columns=("city",), end_us=MINUTE),
    Selection(owned=pb.HashRange(first=0, last=1 << 62)),
    Selection(columns=("driver",), owned=pb.HashRange(first=1 << 63, last=(1 << 64) - 1), start_us=2 * MINUTE),
    Selection(start_us=99 * MINUTE),
]


def name_of(digest: str) -> str:
    return f"data/{digest}.parquet"


def make(tiers: Tiers, count: int = 1000, *, owner: str = "rides") -> Segment:
    return tiers.segment(sorted_rows(count), spec=spec(), owner=owner)


def nearest(segment: Segment) -> Tier:
    """Return the tier through a call: mypy takes a property for a constant."""
    return segment.tier


def local_files(tiers: Tiers) -> list[Path]:
    return sorted(tiers.folder.path.iterdir())


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)


@pytest.mark.parametrize("selection", SELECTIONS, ids=range(len(SELECTIONS)))
def test_every_tier_gives_the_same_rows(tmp_path: Path, selection: Selection) -> None:
    with opened_tiers(tmp_path) as tiers:
        store = MemoryStore()
        segment = make(tiers)
        expected = segment.read(selection)
        segment.spill()
        assert nearest(segment) is Tier.DISK
        assert segment.read(selection).equals(expected)
        entry = segment.upload(store, name_of=name_of, owned=WHOLE_SPACE)
        restored = tiers.stored(entry, store, spec=spec(), owner="rides")
        assert nearest(restored) is Tier.STORE
        assert restored.read(selection).equals(expected)
        assert restored.prefetch().result(30)
        assert nearest(restored) is Tier.MEMORY
        assert restored.read(selection).equals(expected)


def test_a_selection_takes_exactly_its_rows(tmp_path: Path) -> None:
    with opened_tiers(tmp_path) as tiers:
        segment = make(tiers, 1000)
        middle = segment.read(Selection(start_us=MINUTE, end_us=3 * MINUTE))
        assert sequences(middle) == [n for n in range(1000) if n % 4 in {1, 2}]


def test_leaving_memory_gives_its_bytes_back_and_loading_takes_them_again(tmp_path: Path) -> None:
    with opened_tiers(tmp_path) as tiers:
        segment = make(tiers)
        before = tiers.memory.used
        assert before == segment.nbytes == held_bytes(segment.read())
        segment.spill()
        assert tiers.memory.used == 0
        on_disk = segment.read()
        segment.load()
        assert nearest(segment) is Tier.MEMORY
        assert not root_buffers(on_disk) & root_buffers(segment.read())
        assert tiers.memory.snapshot().accounts == {("rides", Purpose.SEGMENTS): segment.nbytes}
        assert segment.nbytes == held_bytes(segment.read())
        files = local_files(tiers)
        segment.spill()  # its file is still there: nothing is written
        assert local_files(tiers) == files
        assert tiers.memory.used == 0
        segment.close()
        assert local_files(tiers) == []


def test_a_reader_during_a_spill_sees_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written, resume = threading.Event(), threading.Event()

    def paused(*arguments: Any, **named: Any) -> ParquetFile:
        file = write_parquet(*arguments, **named)
        written.set()
        assert resume.wait(30)
        return file

    monkeypatch.setattr(segments_module, "write_parquet", paused)
    with opened_tiers(tmp_path) as tiers:
        segment = make(tiers)
        expected = segment.read()
        seen: list[bool] = []
        mover = threading.Thread(target=segment.spill)
        mover.start()
        assert written.wait(30)
        seen.append(segment.read().equals(expected))
        assert nearest(segment) is Tier.MEMORY
        resume.set()
        while mover.is_alive():
            seen.append(segment.read().equals(expected))
        assert nearest(segment) is Tier.DISK
        seen.append(segment.read().equals(expected))
        assert all(seen)


def test_a_reader_keeps_its_rows_when_the_segment_is_closed(tmp_path: Path) -> None:
    with opened_tiers(tmp_path) as tiers:
        segment = make(tiers)
        expected = sequences(segment.read())
        segment.spill()
        groups = segment.row_groups()
        first = next(groups)
        segment.close()
        assert local_files(tiers) == []
        assert sequences(first, *groups) == expected
        with pytest.raises(InputError, match="after it was closed"):
            segment.read()


def test_a_segment_closed_while_it_spills_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened_tiers(tmp_path) as tiers:
        segment = make(tiers)

        def close_meanwhile(*arguments: Any, **named: Any) -> ParquetFile:
            file = write_parquet(*arguments, **named)
            segment.close()
            return file

        monkeypatch.setattr(segments_module, "write_parquet", close_meanwhile)
        segment.spill()
        assert local_files(tiers) == []
        assert tiers.memory.used == 0


@pytest.mark.parametrize("part", [0.02, 0.5, 0.98])
def test_p7_a_flipped_byte_in_a_spilled_file_is_detected_and_named(tmp_path: Path, part: float) -> None:
    with opened_tiers(tmp_path) as tiers:
        segment = make(tiers)
        segment.spill()
        (file,) = local_files(tiers)
        flip(file, int(file.stat().st_size * part))
        with pytest.raises(CorruptObjectError, match=file.name):
            segment.read()


def test_p7_a_spilled_file_that_is_gone_or_cut_short_is_named(tmp_path: Path) -> None:
    with opened_tiers(tmp_path) as tiers:
        segment = make(tiers)
        segment.spill()
        (file,) = local_files(tiers)
        file.write_bytes(file.read_bytes()[:-100])
        with pytest.raises(CorruptObjectError, match=file.name):
            segment.read()
        file.unlink()
        with pytest.raises(MissingFileError, match=file.name):
            segment.read()


def test_what_the_disk_refuses_to_read_is_a_typed_error(tmp_path: Path) -> None:
    with opened_tiers(tmp_path) as tiers:
        segment = make(tiers)
        segment.spill()
        (file,) = local_files(tiers)
        file.unlink()
        file.mkdir()  # which cannot be read as a file
        for read in (segment.read, lambda: list(segment.row_groups())):
            with pytest.raises(SpillError, match=file.name):
                read()


@pytest.mark.parametrize("part", [0.02, 0.5, 0.98])
def test_p7_a_mapped_file_is_checked_when_it_is_first_read(tmp_path: Path, part: float) -> None:
    pieces = [sorted_rows(500), sorted_rows(500, start=500)]
    folder = SpillFolder(tmp_path)
    whole, damaged, cut = (write_mapped(pieces, pieces[0].schema, folder) for _ in range(3))
    whole_rows = whole.read()
    whole.path.unlink()
    assert whole_rows.equals(pa.concat_tables(pieces))
    flip(damaged.path, int(damaged.size * part))
    cut.path.write_bytes(cut.path.read_bytes()[:-100])
    for file in (damaged, cut):
        with pytest.raises(CorruptObjectError, match=file.path.name):
            file.read()
        file.path.unlink()
        with pytest.raises(MissingFileError, match=file.path.name):
            file.read()
    folder.close()


def test_p7_a_damaged_file_does_not_become_a_checkpoint(tmp_path: Path) -> None:
    with opened_tiers(tmp_path) as tiers:
        segment = make(tiers)
        segment.spill()
        (file,) = local_files(tiers)
        flip(file, 1000)
        store = MemoryStore()
        with pytest.raises(CorruptObjectError, match=file.name):
            segment.upload(store, name_of=name_of, owned=WHOLE_SPACE)
        assert list(store.list("")) == []


def test_a_folder_that_cannot_be_written_loses_nothing(tmp_path: Path) -> None:
    with opened_tiers(tmp_path) as tiers:
        segment = make(tiers)
        expected = segment.read()
        used = tiers.memory.used
        tiers.folder.path.rmdir()
        with pytest.raises(SpillError, match="where: ") as caught:
            segment.spill()
        assert "local disk" in caught.value.fix
        assert nearest(segment) is Tier.MEMORY
        assert segment.read().equals(expected)
        assert tiers.memory.used == used
        tiers.folder.path.mkdir()
        segment.spill()
        assert segment.read().equals(expected)


def test_a_new_segment_for_which_the_disk_has_no_room_is_not_taken(tmp_path: Path) -> None:
    with opened_tiers(tmp_path, budget=100_000) as tiers:
        first = make(tiers, 1000)
        tiers.folder.path.rmdir()
        used = tiers.memory.used
        with pytest.raises(SpillError):
            make(tiers, 1000)
        assert tiers.memory.used == used
        assert sequences(first.read()) == list(range(1000))


def test_a_spilled_parquet_file_becomes_a_checkpoint_file_as_it_is(tmp_path: Path) -> None:
    with opened_tiers(tmp_path) as tiers:
        spilled, kept, store = make(tiers), make(tiers), MemoryStore()
        spilled.spill()
        (file,) = local_files(tiers)
        owned = pb.HashRange(first=0, last=99)
        entry = spilled.upload(store, name_of=name_of, owned=owned)
        encoded = encode_segment(sorted_rows(1000), spec=spec())
        assert entry == encoded.file_entry(name_of(encoded.digest), owned=owned)
        assert store.get(entry.path) == file.read_bytes() == encoded.data
        assert kept.upload(store, name_of=name_of, owned=owned) == entry


def test_the_local_cache_is_bounded_and_its_coldest_file_leaves_first(tmp_path: Path) -> None:
    with opened_tiers(tmp_path) as tiers:
        store = MemoryStore()
        entries = [make_entry(tiers, store, start) for start in (0, 10_000, 20_000)]
    size = max(int(entry.size) for entry in entries)
    with opened_tiers(tmp_path, cache_bytes=int(2.5 * size)) as tiers:
        first, second, third = (tiers.stored(entry, store, spec=spec(), owner="rides") for entry in entries)
        for segment in (first, second):
            segment._come_nearer()
            segment.spill()
            assert nearest(segment) is Tier.DISK
        first.read()
        third._come_nearer()
        assert second.tier is Tier.STORE
        assert len(local_files(tiers)) == 2
        assert tiers.cache.used <= tiers.cache.capacity
        assert sequences(second.read()) == list(range(10_000, 11_000))
        assert sequences(first.read()) == list(range(1000))
        for segment in (first, second, third):
            segment.close()
        assert tiers.cache.used == 0
        assert local_files(tiers) == []


def make_entry(tiers: Tiers, store: MemoryStore, start: int) -> pb.FileEntry:
    segment = tiers.segment(sorted_rows(1000, start=start), spec=spec(), owner="rides")
    return segment.upload(store, name_of=name_of, owned=WHOLE_SPACE)


def test_a_spilled_file_counts_in_the_cache_only_once_the_store_has_it(tmp_path: Path) -> None:
    with opened_tiers(tmp_path, cache_bytes=10) as tiers:
        segment, store = make(tiers), MemoryStore()
        segment.spill()
        assert nearest(segment) is Tier.DISK
        assert tiers.cache.used == 0
        segment.upload(store, name_of=name_of, owned=WHOLE_SPACE)
        assert nearest(segment) is Tier.STORE
        assert local_files(tiers) == []
        assert sequences(segment.read()) == list(range(1000))


def test_a_copy_that_the_cache_dropped_under_a_reader_is_read_from_the_store(tmp_path: Path) -> None:
    with opened_tiers(tmp_path) as tiers:
        segment, store = make(tiers), MemoryStore()
        segment.spill()
        segment.upload(store, name_of=name_of, owned=WHOLE_SPACE)
        (file,) = local_files(tiers)
        file.unlink()
        assert sequences(segment.read()) == list(range(1000))


def test_p7_a_missing_object_is_named(tmp_path: Path) -> None:
    with opened_tiers(tmp_path) as tiers:
        segment, store = make(tiers), MemoryStore()
        entry = segment.upload(store, name_of=name_of, owned=WHOLE_SPACE)
        restored = tiers.stored(entry, store, spec=spec(), owner="rides")
        store.delete(entry.path)
        with pytest.raises(MissingFileError, match=entry.path):
            restored.read()
        with pytest.raises(MissingFileError, match=entry.path):
            restored.prefetch().result(30)


def test_p7_a_damaged_object_is_named_and_not_copied(tmp_path: Path) -> None:
    with opened_tiers(tmp_path) as tiers:
        segment, store = make(tiers), MemoryStore()
        entry = segment.upload(store, name_of=name_of, owned=WHOLE_SPACE)
        data = bytearray(store.get(entry.path))
        data[2000] ^= 1
        store.put(entry.path, bytes(data))
        restored = tiers.stored(entry, store, spec=spec(), owner="rides")
        for look in (restored.read, restored.prefetch().result):
            with pytest.raises(CorruptObjectError, match=entry.path):
                look()
        assert local_files(tiers) == []


def test_loading_in_the_background_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers_module, "LOADS_AT_ONCE", 3)
    with opened_tiers(tmp_path) as tiers:
        resume = threading.Event()
        waiting = [tiers.load_soon(lambda: resume.wait(30), owner="t") for _ in range(3)]
        assert tiers.load_soon(lambda: True, owner="t").result(0) is False
        resume.set()
        assert all(future.result(30) for future in waiting)
        assert tiers.load_soon(lambda: True, owner="t").result(30) is True
        assert tiers.load_soon(lambda: False, owner="t").result(30) is False


def test_a_load_that_was_cancelled_takes_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers_module, "LOADS_AT_ONCE", 3)
    with opened_tiers(tmp_path) as tiers:
        resume = threading.Event()
        running = [tiers.load_soon(lambda: resume.wait(30), owner="t") for _ in range(2)]
        for _ in range(4):
            assert tiers.load_soon(lambda: True, owner="t").cancel()
        resume.set()
        assert all(future.result(30) for future in running)


def test_after_closing_nothing_is_prefetched_and_nothing_stays_pinned(tmp_path: Path) -> None:
    with opened_tiers(tmp_path) as tiers:
        segment = tiers.segment(sorted_rows(100), spec=spec(), owner="rides")
        tiers.close()
        assert segment.prefetch().result(0) is False
        segment.close()
        assert segment.closed
        assert tiers.memory.used == 0


def test_a_slice_of_a_large_table_does_not_pin_it(tmp_path: Path) -> None:
    with opened_tiers(tmp_path) as tiers:
        large = sorted_rows(10_000)
        segment = tiers.segment(large.slice(0, 100), spec=spec(), owner="rides")
        assert segment.nbytes < held_bytes(large) / 50


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (sorted_rows(10).slice(0, 0), "no rows"),
        (rows(10), "row 4 of a segment is out of order"),
        (sorted_rows(10).drop_columns(["fare"]), "do not fit the columns"),
    ],
)
def test_rows_that_are_no_segment_are_refused(tmp_path: Path, given: pa.Table, what: str) -> None:
    with opened_tiers(tmp_path) as tiers:
        with pytest.raises(InputError, match=what):
            tiers.segment(given, spec=spec(), owner="rides")
        assert tiers.memory.used == 0
