"""Cost of reading a table: bytes, row groups, memory; the checks made; and reads while a job writes."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from unit.inspect.table_world import TableWorld

import statebed as sb
from statebed.errors import CorruptObjectError, EpochNotRetainedError, MissingFileError
from statebed.inspect.tables.hash_merge import HashSource, merge_by_hash
from statebed.inspect.tables.slices import slices_of
from statebed.state import DeleteKey
from statebed.storage import LocalStore

MINUTE = 60_000_000
Fetched = Counter[str]


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> Fetched:
    """Bytes of data files that are fetched, by path."""
    counted: Fetched = Counter()
    original = LocalStore.get_range

    def get_range(self: LocalStore, path: str, start: int, length: int) -> bytes:
        data = original(self, path, start, length)
        counted[path.partition("/")[2]] += len(data)
        return data

    monkeypatch.setattr(LocalStore, "get_range", get_range)
    return counted


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TableWorld]:
    world = TableWorld(tmp_path)
    yield world
    world.end()


def write_drivers(world: TableWorld, count: int, *, seed: int = 0, first: int = 0, note: int = 8) -> None:
    """Rows of many drivers, whose bytes do not compress."""
    chance = np.random.default_rng(seed)
    characters = chance.integers(33, 127, count * note, dtype=np.uint8)
    offsets = np.arange(0, count * note + 1, note, dtype=np.int32)
    world.write(
        "drivers",
        {
            "city": pa.repeat("Ulm", count),
            "driver": np.arange(first, first + count),
            "trips": chance.integers(0, 1 << 60, count),
            "note": pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(characters)),
        },
    )


def check_scan(table: sb.StateTable, fetched: Fetched, read: Callable[[], object]) -> None:
    """`scan` says byte by byte what reading fetches."""
    scan = table.scan()
    fetched.clear()
    read()
    assert fetched == Counter({one.path: one.bytes_read for one in scan.files if one.bytes_read})


LARGE = 3_500_000


def write_much(world: TableWorld, count: int, *, note: int) -> None:
    """Many rows in one epoch, and newer ones of some keys in another."""
    for part in range(4):
        write_drivers(world, count // 4, seed=part, first=count // 4 * part, note=note)
    world.epoch()
    write_drivers(world, 2000, seed=9, first=1000, note=note)
    world.epoch()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TableWorld]:
    """100 MB of state in one table."""
    world = TableWorld(tmp_path_factory.mktemp("large"))
    write_much(world, LARGE, note=8)
    yield world
    world.end()


def check_a_key_is_cheap(world: TableWorld, fetched: Fetched, *, min_bytes: int) -> None:
    table = sb.read_state(world.url, table="drivers")
    scan = table.scan()
    whole = scan.bytes_read + scan.bytes_skipped
    assert whole > min_bytes
    for key in (777_777, 1500):
        fetched.clear()
        (row,) = table.keys(("Ulm", key)).to_arrow().to_pylist()
        assert row["driver"] == key
        assert sum(fetched.values()) < 0.05 * whole
    asked = table.keys(("Ulm", 777_777)).scan()
    assert asked.row_groups_skipped > 10 * asked.row_groups_read


def test_with_a_key_less_than_five_percent_of_100_mb_are_read(large: TableWorld, fetched: Fetched) -> None:
    check_a_key_is_cheap(large, fetched, min_bytes=100_000_000)
    table = sb.read_state(large.url, table="drivers")
    whole = table.scan().bytes_read
    fetched.clear()
    assert table.keys(("Ulm", LARGE + 1)).count() == 0
    assert table.head(10).num_rows == 10
    assert sum(fetched.values()) < 0.1 * whole
    assert table.select("trips").scan().bytes_read < 0.8 * whole


@pytest.mark.long
@pytest.mark.timeout(900)
def test_with_a_key_less_than_five_percent_of_1_gb_are_read(world: TableWorld, fetched: Fetched) -> None:
    write_much(world, 8_400_000, note=100)
    check_a_key_is_cheap(world, fetched, min_bytes=1_000_000_000)


def test_p4_reading_piece_by_piece_holds_a_part_of_the_table(large: TableWorld) -> None:
    table = sb.read_state(large.url, table="drivers")
    whole = table.scan().bytes_read
    before, most, rows = pa.total_allocated_bytes(), 0, 0
    for batch in table.to_batches():
        most = max(most, pa.total_allocated_bytes() - before)
        rows += batch.num_rows
    assert rows == LARGE
    assert most < whole / 2


def test_slices_are_the_answer_in_parts(large: TableWorld) -> None:
    table = sb.read_state(large.url, table="drivers").select("driver")
    found = table._found
    slices = slices_of(found.pinned, table._request, found.parts, slice_bytes=8 << 20)
    assert len(slices) > 8
    numbers = pa.chunked_array([batch.column(0) for part in slices for batch in part.batches()])
    assert np.array_equal(np.sort(numbers.to_numpy()), np.arange(LARGE))
    assert len(sb.read_state(large.url, table="drivers").keys(("Ulm", 7)).slices()) == 1


@pytest.mark.parametrize("table", ["drivers", "fares", "prices"])
def test_scan_says_what_is_fetched(world: TableWorld, fetched: Fetched, table: str) -> None:
    for epoch in range(3):
        numbers = np.arange(epoch * 500, epoch * 500 + 1500)
        rows: dict[str, Any] = {"driver": numbers, ("trips" if table == "drivers" else "cents"): numbers}
        if table == "drivers":
            rows |= {"city": ["Ulm"] * len(numbers), "note": [None] * len(numbers)}
        else:
            rows |= {"_time": numbers * MINUTE // 60}
        world.write(table, rows)
        world.epoch()
    found = sb.read_state(world.url, table=table)
    key = ("Ulm", 777) if table == "drivers" else 777
    for asked in (found, found.keys(key), found.select("driver"), found.select("driver").keys(key)):
        check_scan(asked, fetched, asked.to_arrow)
    if table != "drivers":
        asked = found.between(3 * MINUTE, 4 * MINUTE)
        check_scan(asked, fetched, asked.to_arrow)
        assert asked.scan().bytes_read < found.scan().bytes_read
        assert "time" in {one.why for one in asked.scan().files}


def test_rows_of_a_time_keyed_table_are_counted_without_opening_a_file(world: TableWorld, fetched: Fetched) -> None:
    numbers = np.arange(1000)
    world.write("fares", {"driver": numbers, "_time": numbers * MINUTE, "cents": numbers})
    world.epoch()
    assert sb.read_state(world.url, table="fares").count() == 1000
    assert not fetched
    world.write("fares", {"driver": [7]}, DeleteKey())
    world.epoch()
    assert sb.read_state(world.url, table="fares").count() == 999


# ---- damage, clean-up, a job that writes -----------------------------------------------------------------------------


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


def data_files(world: TableWorld) -> list[Path]:
    return sorted((world.folder / "rides").glob("checkpoints/*/data/count-drivers-*.parquet"))


def test_p7_a_flipped_byte_in_what_is_read_is_an_error_that_names_the_file(world: TableWorld) -> None:
    write_drivers(world, 1000)
    world.epoch()
    table = sb.read_state(world.url, table="drivers")
    assert table.count() == 1000
    for file in data_files(world):
        size = file.stat().st_size
        for at in [*range(4, size, 997), size - 1]:
            flip(file, at)
            with pytest.raises(CorruptObjectError, match=file.name):
                sb.read_state(world.url, table="drivers").to_arrow()
            flip(file, at)
    assert sb.read_state(world.url, table="drivers").to_arrow().num_rows == 1000


def test_p7_a_file_that_was_removed_is_named_and_a_collected_epoch_is_called_so(tmp_path: Path) -> None:
    world = TableWorld(tmp_path, retained=2)
    write_drivers(world, 100)
    first = sb.read_state(world.url, table="drivers", epoch=world.epoch())
    file = data_files(world)[0]
    kept = file.read_bytes()
    file.unlink()
    with pytest.raises(MissingFileError, match=file.name):
        first.to_arrow()
    file.write_bytes(kept)
    assert first.count() == 100
    for seed in range(5):
        write_drivers(world, 100, seed=seed)
        world.compact()
        world.epoch()
        world.run.clean_up()
    with pytest.raises(EpochNotRetainedError, match="epoch 2 is no longer retained"):
        first.to_arrow()
    world.end()


def test_p2_a_table_stays_what_it_was_while_the_job_goes_on(world: TableWorld) -> None:
    write_drivers(world, 2000)
    world.epoch()
    table = sb.read_state(world.url, table="drivers").select("driver", "trips")
    before = table.to_arrow()
    batches = table.to_batches()
    first = next(batches)
    for seed in range(4):
        write_drivers(world, 1000, seed=seed + 1)
        world.compact()
        world.epoch()
    assert pa.Table.from_batches([first, *batches], schema=table.schema) == before
    assert table.to_arrow() == before
    assert sb.read_state(world.url, table="drivers").select("driver", "trips").to_arrow() != before


def test_p2_readers_beside_a_writing_job_see_whole_epochs(tmp_path: Path) -> None:
    """Every epoch gives all keys the same number: a reader that saw two epochs at once would find two numbers."""
    world = TableWorld(tmp_path, retained=3)
    keys = {"city": ["c"] * 300, "driver": list(range(300)), "note": [None] * 300}
    world.write("drivers", keys | {"trips": [0] * 300})
    world.epoch()
    done = threading.Event()
    seen: list[set[int]] = []

    def read() -> None:
        while not done.is_set():
            try:
                seen.append(set(sb.read_state(world.url, table="drivers").to_arrow()["trips"].to_pylist()))
            except EpochNotRetainedError:
                continue  # slower than the clean-up of three epochs

    reader = threading.Thread(target=read)
    reader.start()
    number = 0
    while number < 15 or (number < 300 and len(set().union(*seen)) <= 2):
        number += 1
        world.write("drivers", keys | {"trips": [number] * 300})
        if number % 5 == 0:
            world.compact()
        world.epoch()
        world.run.clean_up()
    done.set()
    reader.join(60)
    assert not reader.is_alive()
    assert len(set().union(*seen)) > 2
    assert all(len(one) == 1 for one in seen)
    world.end()


# ---- the merge -------------------------------------------------------------------------------------------------------


def test_pieces_of_files_come_together_by_hash_however_they_are_cut() -> None:
    chance = np.random.default_rng(5)
    for _ in range(200):
        rows: list[tuple[int, int]] = []
        sources = []
        for tag in range(int(chance.integers(1, 5))):
            hashes = np.sort(chance.integers(0, 12, int(chance.integers(0, 15)))).astype(np.uint64)
            rows += [(int(one), tag) for one in hashes]
            cuts = np.sort(chance.integers(0, len(hashes) + 1, int(chance.integers(0, 4))))
            pieces = [pa.table({"_key_hash": pa.array(part, pa.uint64())}) for part in np.split(hashes, cuts)]
            sources.append(HashSource(int(hashes[0]) if len(hashes) else 0, iter(pieces), tag))
        found: list[tuple[int, int]] = []
        last = -1
        for step in merge_by_hash(sources):
            now = [(one, tag) for tag, part in step for one in part["_key_hash"].to_pylist()]
            assert min(now)[0] > last
            last = max(now)[0]
            found += now
        assert sorted(found) == sorted(rows)


@pytest.mark.parametrize(
    ("condition", "like"),
    [
        ("city = 'Ulm' and driver = 777", {"keys": [("Ulm", 777)]}),
        ("trips > 0 and (driver in (777, 778) and 'Ulm' = city)", {"keys": [("Ulm", 777), ("Ulm", 778)]}),
        ("driver = 777", {}),
        ("city = 'Ulm' and driver = 777.0", {}),
        ("city = 'Ulm' or driver = 777", {}),
        ("city = 'Ulm' and not driver = 777", {}),
    ],
)
def test_what_a_condition_says_of_keys_narrows_what_is_read(
    world: TableWorld, condition: str, like: dict[str, list[tuple[str, int]]]
) -> None:
    write_drivers(world, 2000)
    world.epoch()
    table = sb.read_state(world.url, table="drivers")
    asked = table.filter(condition)
    assert asked.scan() == (table.keys(*like["keys"]) if like else table).scan()
    everything = pa.table(table).to_pylist()
    wanted = {"city": "Ulm"}
    assert wanted.items() <= everything[0].items()
    rows = [row["driver"] for row in asked.to_arrow().to_pylist()]
    assert sorted(rows) == sorted(row["driver"] for row in everything if holds(condition, row))


def holds(condition: str, row: dict[str, Any]) -> bool:
    """The same in Python."""
    return bool(
        {
            "city = 'Ulm' and driver = 777": row["driver"] == 777,
            "trips > 0 and (driver in (777, 778) and 'Ulm' = city)": row["driver"] in {777, 778},
            "driver = 777": row["driver"] == 777,
            "city = 'Ulm' and driver = 777.0": row["driver"] == 777,
            "city = 'Ulm' or driver = 777": True,
            "city = 'Ulm' and not driver = 777": row["driver"] != 777,
        }[condition]
    )


@pytest.mark.parametrize(
    ("condition", "start", "end"),
    [
        ("_time >= timestamp '1970-01-01 00:10:00' and _time < timestamp '1970-01-01 00:20:00'", 600, 1200),
        ("_time between timestamp '1970-01-01 00:10:00' and timestamp '1970-01-01 00:20:00'", 600, 1201),
        ("timestamp '1970-01-01 00:10:00' <= _time and cents >= 0", 600, None),
        ("_time = timestamp '1970-01-01 00:10:00'", 600, 601),
        ("_time <= timestamp '1970-01-01 00:10:00' or cents < 0", None, None),
    ],
)
def test_what_a_condition_says_of_times_narrows_what_is_read(
    world: TableWorld, condition: str, start: int | None, end: int | None
) -> None:
    for first in (0, 900, 1800):
        numbers = np.arange(first, first + 900)
        world.write("fares", {"driver": numbers, "_time": numbers * 1_000_000, "cents": numbers})
        world.epoch()
    table = sb.read_state(world.url, table="fares")
    asked = table.filter(condition)
    if start is None:
        assert asked.scan() == table.scan()
        assert asked.count() == 601
        return
    spanned = table.between(start * 1_000_000, None if end is None else end * 1_000_000)
    assert asked.scan() == spanned.scan()
    assert asked.count() == spanned.count() == len(range(start, end or 2700))
    assert sorted(asked.to_arrow()["cents"].to_pylist()) == list(range(start, end or 2700))
