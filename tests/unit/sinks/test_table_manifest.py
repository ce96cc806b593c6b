"""The manifest of a table: bounded however long the table lives, with readers, sleepers and crashes."""

import base64
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.sinks.tables import new_path, publication, rows, sealed, sink

from statebed.errors import CorruptObjectError, FencedError, LostWriteError
from statebed.protocol import SinkPosition
from statebed.sinks import read_table, table_files
from statebed.sinks.manifest import Manifest, page_tree, table_state
from statebed.sinks.manifest.manifest import KEPT_ENTRIES
from statebed.sinks.manifest.table_state import TAIL_ENTRIES
from statebed.storage import ObjectStore, get_storage_provider
from statebed.testing.faults import Fault, FaultStore, SimulatedCrash

RECORDED = Path(__file__).parent / "recorded" / "table_version_1.json"
RECORDED_ROWS = [*range(2, 26), *range(32, 41)]


def recorded() -> tuple[str, ObjectStore]:
    """A table that statebed wrote before entries were sealed: 41 entries, two runs, a rollback."""
    path = new_path()
    store = get_storage_provider(path)
    for name, data in json.loads(RECORDED.read_text()).items():
        store.put(name, base64.b64decode(data))
    return path, store


def manifest_objects(store: ObjectStore) -> list[str]:
    return [info.path for info in store.list("_statebed")]


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use few files per page, and few entries from base to base, so that some dozen epochs make a tree of pages."""
    make_small(monkeypatch)


def make_small(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(page_tree, "PAGE_FILES", 3)
    patch.setattr(page_tree, "FANOUT", 2)
    patch.setattr(table_state, "PAGE_FILES", 6)
    patch.setattr(table_state, "TAIL_ENTRIES", 4)


# ---- version 1 -----------------------------------------------------------------------------------------------------


def test_a_table_of_version_1_is_read_and_continued() -> None:
    path, store = recorded()
    assert rows(path) == RECORDED_ROWS
    table = sink(path)
    assert table.open(41) == SinkPosition(run=31, epoch=40)
    assert rows(path) == RECORDED_ROWS
    for epoch in range(42, 42 + 2 * TAIL_ENTRIES):
        table.publish(publication(41, epoch, epoch))
    assert rows(path) == [*RECORDED_ROWS, *range(42, 42 + 2 * TAIL_ENTRIES)]
    assert all(b'"crc32c":"' in store.get(name)[-22:] for name in manifest_objects(store))  # the old ones are gone
    again = sink(path)
    assert again.open(500) == SinkPosition(run=41, epoch=41 + 2 * TAIL_ENTRIES)
    again.roll_back(500, 30)
    assert rows(path) == list(range(2, 26))


def test_a_table_of_version_1_whose_first_sealed_entry_was_not_put_is_as_before() -> None:
    """The run died when it had written the pages."""
    path, store = recorded()
    dying = sink(path)
    dying._manifest = Manifest(FaultStore(store, lambda o: Fault.CRASH_BEFORE if o.path.endswith("42.json") else None))
    with pytest.raises(SimulatedCrash):
        dying.open(41)
    assert any("/pages/" in name for name in manifest_objects(store))
    assert rows(path) == RECORDED_ROWS
    sink(path).open(41)
    assert rows(path) == RECORDED_ROWS


def test_p7_an_entry_without_checksum_is_refused_in_a_sealed_table() -> None:
    """Nothing that version 1 would accept may stand in for a sealed entry."""
    path, store = new_path(), None
    table = sink(path)
    table.open(1)
    for epoch in (2, 3, 4):
        table.publish(publication(1, epoch, epoch))
    store = get_storage_provider(path)
    for number in (1, 2, 4):
        name = f"_statebed/{number:012d}.json"
        good = store.get(name)
        members = json.loads(good)
        unsealed = {key: members[key] for key in members if key not in {"crc32c", "base", "pages"}} | {"version": 1}
        for other in (unsealed, {**unsealed, "version": 2}, {**members, "version": 1}):
            store.put(name, json.dumps(other).encode())
            with pytest.raises(CorruptObjectError) as caught:
                read_table(path)
            assert "_statebed/" in caught.value.where
        store.put(name, good)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"number":3', b'"number":2'),
        (b'"base":1', b'"base":3'),
        (b'"base":1', b'"base":0'),
        (b'"nonce"', b'"unknown":1,"nonce"'),
        (b'"epoch":3', b'"epoch":4'),
        (b"epoch=000000000003/", b"epoch=000000000002/"),
        (b"epoch=000000000003/", b"epoch=000000000003/../"),
        (b'"size":', b'"size":-'),
        (b'"version":2', b'"version":1'),
    ],
)
def test_p7_an_entry_that_contradicts_itself_is_refused_whatever_its_checksum(old: bytes, new: bytes) -> None:
    path = new_path()
    table = sink(path)
    table.open(1)
    for epoch in (2, 3):
        table.publish(publication(1, epoch, epoch))
    store = get_storage_provider(path)
    name = "_statebed/000000000003.json"
    good = store.get(name)
    assert old in good
    store.put(name, sealed(good.replace(old, new, 1)))
    with pytest.raises(CorruptObjectError) as caught:
        read_table(path)
    assert name in caught.value.where


# ---- bounded -------------------------------------------------------------------------------------------------------


def test_p5_the_manifest_has_few_objects_and_is_read_from_few_however_many_epochs_there_are() -> None:
    path = new_path()
    store = get_storage_provider(path)
    table = sink(path)
    table.open(1)
    counts, sizes = [], []
    for epoch in range(2, 12 * TAIL_ENTRIES):
        table.publish(publication(1, epoch, epoch))
        counts.append(len(store.list_level("_statebed").objects))
        sizes.append(len(store.get(f"_statebed/{epoch:012d}.json")))
    assert max(counts) <= TAIL_ENTRIES * 2 + KEPT_ENTRIES
    assert max(counts[-TAIL_ENTRIES:]) <= max(counts[4 * TAIL_ENTRIES : 5 * TAIL_ENTRIES])
    assert max(sizes) < 2_000
    assert len(store.list_level("_statebed/pages").objects) <= 4
    watched = FaultStore(store)
    manifest = Manifest(watched)
    assert len(list(manifest.files(manifest.refresh()))) == 12 * TAIL_ENTRIES - 2
    assert len(watched.log) <= TAIL_ENTRIES + 4
    assert rows(path) == list(range(2, 12 * TAIL_ENTRIES))


@pytest.mark.usefixtures("small_pages")
def test_p3_a_writer_that_slept_until_its_next_entry_was_deleted_is_fenced() -> None:
    path = new_path()
    store = get_storage_provider(path)
    zombie = sink(path)
    zombie.open(1)
    zombie.publish(publication(1, 2, 2))
    other_zombie = sink(path)
    other_zombie._checked()
    live = sink(path)
    live.open(3)
    for epoch in range(4, 4 + 3 * KEPT_ENTRIES):
        live.publish(publication(3, epoch, epoch))
    assert store.head("_statebed/000000000003.json") is None
    expected = rows(path)
    for late in (zombie, other_zombie):
        with pytest.raises(FencedError):
            late.publish(publication(1, 3, 3))
        assert rows(path) == expected
    live.publish(publication(3, 900, 900))
    assert rows(path) == [*expected, 900]


@pytest.mark.usefixtures("small_pages")
def test_p5_a_reader_beside_a_busy_writer_sees_the_table_of_one_moment() -> None:
    """Between any two reads of the reader the writer publishes many epochs."""
    path = new_path()
    store = get_storage_provider(path)
    table = sink(path)
    table.open(1)
    for epoch in range(2, 40):
        table.publish(publication(1, epoch, epoch))
    epochs: Iterator[int] = iter(range(40, 10_000))
    pauses = iter(range(30))

    def write(_operation: object) -> None:
        if next(pauses, None) is not None:
            for epoch, _ in zip(epochs, range(KEPT_ENTRIES // 4), strict=False):
                table.publish(publication(1, epoch, epoch))

    reader = Manifest(FaultStore(store, before=write))
    found = reader.refresh()
    seen = [file.epoch for file in reader.files(found)]
    assert seen == list(range(2, found.epoch + 1))


def test_p5_pages_that_a_crash_or_a_rollback_left_are_swept_by_the_next_run(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)
    path = new_path()
    store = get_storage_provider(path)
    table = sink(path)
    table.open(1)
    for epoch in range(2, 60):
        table.publish(publication(1, epoch, epoch))
    table.roll_back(1, 5)
    store.put(f"_statebed/pages/{5:012d}.{'0' * 32}.json", b"of a run that died before it put its entry")
    for epoch in range(60, 60 + 3 * KEPT_ENTRIES):
        table.publish(publication(1, epoch, epoch))
    expected = rows(path)
    opened = sink(path)
    opened.open(900)
    used = {page.path for page in opened._manifest.pages(opened._manifest.refresh())}
    left = {info.path for info in store.list("_statebed/pages")}
    assert used <= left
    assert len(left - used) <= KEPT_ENTRIES  # those of recent entries are kept for readers
    assert f"_statebed/pages/{5:012d}.{'0' * 32}.json" not in left
    assert rows(path) == expected


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 4)),
        st.tuples(st.just("many"), st.integers(1, 12)),
        st.tuples(st.just("reopen"), st.just(0)),
        st.tuples(st.just("roll back"), st.integers(0, 60)),
        st.tuples(st.just("crash"), st.integers(1, 9)),
    ),
    max_size=25,
)


@settings(max_examples=examples(60), deadline=None)
@given(STEPS)
def test_p2_a_table_of_any_history_consists_of_the_epochs_that_were_published(steps: list[tuple[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        check_history(steps)


def check_history(steps: list[tuple[str, int]]) -> None:
    path = new_path()
    store = get_storage_provider(path)
    run = epoch = 1
    table = sink(path)
    table.open(run)
    expected: list[int] = []
    for step, amount in steps:
        if step == "publish":
            epoch += 1
            expected += [epoch] * amount
            table.publish(publication(run, epoch, *[epoch] * amount))
        elif step == "many":
            for _ in range(amount):
                epoch += 1
                expected.append(epoch)
                table.publish(publication(run, epoch, epoch))
        elif step == "roll back":
            table.roll_back(run, amount)
            expected = [one for one in expected if one <= amount]
        else:
            if step == "crash":
                dying = sink(path)
                dying._manifest = Manifest(FaultStore(store, {amount: Fault.CRASH_AFTER}))
                dying._manifest.state = table._manifest.state
                with contextlib.suppress(SimulatedCrash):
                    for late in range(epoch + 1, epoch + 20):
                        dying.publish(publication(run, late, late))
                    raise AssertionError
                reader = Manifest(store)
                position = reader.refresh().epoch
                expected += range(epoch + 1, position + 1)
                epoch += 20
            run = epoch = epoch + 1
            table = sink(path)
            table.open(run)
        assert [file.epoch for file in table._manifest.files(table._manifest.refresh())] == sorted(set(expected))
    assert rows(path) == expected
    assert len(table_files(path)) == len(set(expected))


def test_an_entry_with_another_content_than_its_checksum_is_refused() -> None:
    """A later epoch in the newest entry, which lists no file, would let the sink skip the epochs up to it."""
    path = new_path()
    table = sink(path)
    table.open(1)
    for epoch in (2, 3, 4):
        table.publish(publication(1, epoch, epoch))
    sink(path).open(5)
    store = get_storage_provider(path)
    newest = max(name for name in manifest_objects(store) if name.endswith(".json"))
    data = store.get(newest)
    assert data.count(b'"epoch":4') == 1
    store.put(newest, data.replace(b'"epoch":4', b'"epoch":6'))
    for look in (sink(path).peek, lambda: sink(path).open(6), lambda: rows(path)):
        with pytest.raises(CorruptObjectError, match="checksum of entry"):
            look()


SPOILS = [Fault.STORE_HALF, Fault.STORE_FLIPPED, Fault.STORE_NOTHING]


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("fault", SPOILS)
@pytest.mark.parametrize("spoiled", [".parquet", "_statebed/pages/", "_statebed/0"])
def test_p1_an_epoch_whose_objects_the_store_spoils_is_not_published(fault: Fault, spoiled: str) -> None:
    """Neither files, nor pages of the manifest, nor the entry that lists them."""
    path = new_path()
    table = sink(path)
    table.open(1)
    table.publish(publication(1, 2, 2))
    store = table._store
    spoiling = FaultStore(store, lambda o: fault if o.verb.writes and spoiled in o.path else None)
    for epoch in range(3, 40):
        before = manifest_objects(store)
        table._store, table._manifest = spoiling, Manifest(spoiling)
        with contextlib.suppress(LostWriteError):
            table.publish(publication(1, epoch, epoch))
        if any(o.verb.writes and spoiled in o.path for o in spoiling.log):
            break
        table._store, table._manifest = store, Manifest(store)
    else:
        pytest.fail("no such object was written")
    for name in set(manifest_objects(store)) - set(before):
        store.delete(name)  # the advice of the error, for a damaged entry
    assert rows(path) == list(range(2, epoch))
    again = sink(path)
    assert again.open(2) == SinkPosition(run=1, epoch=epoch - 1)
    again.publish(publication(2, epoch, epoch))
    assert rows(path) == list(range(2, epoch + 1))
