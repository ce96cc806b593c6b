"""Contract of every store: one case a function, run over each implementation by the test module beside it.

A case gets an empty store. The modules that run them load this file by its path and parametrise over `CASES`.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from statebed.errors import InputError, ObjectMissingError
from statebed.storage import ObjectStore, PutOutcome, ScopedStore, probe_put_if_absent

BAD_PATHS = ("", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "a/./b", "a\\b", "a\nb", "a\x00b", "x" * 256)


def put_if_absent_creates_once_and_keeps_the_first_bytes(store: ObjectStore) -> None:
    assert store.put_if_absent("a/b", b"first") is PutOutcome.CREATED
    assert store.put_if_absent("a/b", b"second") is PutOutcome.EXISTS
    assert store.get("a/b") == b"first"


def put_if_absent_creates_again_after_a_delete(store: ObjectStore) -> None:
    store.put_if_absent("a/b", b"first")
    store.delete("a/b")
    assert store.put_if_absent("a/b", b"second") is PutOutcome.CREATED
    assert store.get("a/b") == b"second"


def many_objects_are_deleted_at_once_those_that_are_not_there_too(store: ObjectStore) -> None:
    paths = [f"many/{number % 7}/{number}" for number in range(50)]
    for path in [*paths, "kept"]:
        store.put(path, b"x")
    store.delete_many([*paths[:25], "many/never/there", "never"])
    assert {info.path for info in store.list("")} == {"kept", *paths[25:]}
    store.delete_many([*paths[25:], paths[0]])
    store.delete_many([])
    assert [info.path for info in store.list("")] == ["kept"]


def put_creates_and_replaces(store: ObjectStore) -> None:
    store.put("a/b", b"first")
    store.put("a/b", b"second, longer")
    assert store.get("a/b") == b"second, longer"
    assert store.put_if_absent("a/b", b"third") is PutOutcome.EXISTS


def twenty_at_once_have_one_winner_whose_bytes_remain(store: ObjectStore) -> None:
    for round_number in range(3):
        path = f"race/{round_number}"
        barrier = threading.Barrier(20, timeout=30)

        def contend(number: int, path: str = path, barrier: threading.Barrier = barrier) -> PutOutcome:
            barrier.wait()
            return store.put_if_absent(path, b"%d" % number)

        with ThreadPoolExecutor(20) as pool:
            outcomes = list(pool.map(contend, range(20)))
        winners = [number for number, outcome in enumerate(outcomes) if outcome is PutOutcome.CREATED]
        assert len(winners) == 1
        assert store.get(path) == b"%d" % winners[0]


def an_empty_object_is_an_object(store: ObjectStore) -> None:
    assert store.put_if_absent("empty", b"") is PutOutcome.CREATED
    assert store.get("empty") == b""
    assert store.get_range("empty", 0, 10) == b""
    info = store.head("empty")
    assert info is not None
    assert info.size == 0


def twelve_megabytes_come_back_as_they_were(store: ObjectStore) -> None:
    data = bytes(range(256)) * (12 * 4096)
    store.put("large", data)
    assert store.get("large") == data
    assert store.put_if_absent("large-once", data) is PutOutcome.CREATED
    assert store.get_range("large-once", 12_000_000, 16) == data[12_000_000:12_000_016]


def get_range_gives_what_there_is(store: ObjectStore) -> None:
    store.put("digits", b"0123456789")
    assert store.get_range("digits", 0, 3) == b"012"
    assert store.get_range("digits", 7, 100) == b"789"
    assert store.get_range("digits", 10, 1) == b""
    assert store.get_range("digits", 99, 1) == b""
    assert store.get_range("digits", 3, 0) == b""


def a_missing_object_is_missing_by_every_verb(store: ObjectStore) -> None:
    store.put("folder/object", b"x")
    for path in ("nothing", "folder", "folder/object/below", "no/such/folder"):
        assert store.head(path) is None
        with pytest.raises(ObjectMissingError) as caught:
            store.get(path)
        assert path in caught.value.where
        with pytest.raises(ObjectMissingError):
            store.get_range(path, 0, 1)
        with pytest.raises(ObjectMissingError):
            store.get_range(path, 0, 0)
        store.delete(path)
    assert store.get("folder/object") == b"x"


def head_tells_size_and_a_time(store: ObjectStore) -> None:
    store.put("a/b", b"12345")
    info = store.head("a/b")
    assert info is not None
    assert (info.path, info.size) == ("a/b", 5)
    assert info.modified_us > 1_600_000_000_000_000


def list_is_deep_and_sorted_by_path(store: ObjectStore) -> None:
    paths = ["a-b", "a/b", "a/c/d", "a0", "b/x", "a/b2", "ab/c"]
    for path in paths:
        store.put(path, path.encode())
    assert [info.path for info in store.list("")] == sorted(paths)
    assert [(info.path, info.size) for info in store.list("a")] == [("a/b", 3), ("a/b2", 4), ("a/c/d", 5)]
    assert list(store.list("a/b")) == []
    assert list(store.list("nothing")) == []


def list_level_shows_objects_and_folders_of_one_level(store: ObjectStore) -> None:
    for path in ("a-b", "a/b", "a/c/d", "a/e/f/g", "b"):
        store.put(path, b"x")
    root, inner = store.list_level(""), store.list_level("a")
    assert ([info.path for info in root.objects], root.folders) == (["a-b", "b"], ("a",))
    assert ([info.path for info in inner.objects], inner.folders) == (["a/b"], ("a/c", "a/e"))
    empty = store.list_level("nothing")
    assert (empty.objects, empty.folders) == ((), ())


def a_deleted_object_is_in_no_listing(store: ObjectStore) -> None:
    store.put("a/b/c", b"x")
    store.put("a/d", b"x")
    store.delete("a/b/c")
    assert [info.path for info in store.list("")] == ["a/d"]
    assert store.list_level("a/b").objects == ()
    store.delete("a/d")
    assert list(store.list("")) == []
    assert store.list_level("a").objects == ()


def a_long_listing_is_complete(store: ObjectStore) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.put(f"many/{number:04d}", b""), range(1100)))
    assert [info.path for info in store.list("many")] == [f"many/{number:04d}" for number in range(1100)]
    assert len(store.list_level("many").objects) == 1100


def names_may_hold_spaces_percents_and_other_letters(store: ObjectStore) -> None:
    names = ["ü ß", "100%25", "a+b&c=d#e?f", "日本", "_under.score-dash", "quote'\"", "~tilde", "star*"]
    for name in names:
        store.put(f"odd/{name}/{name}", name.encode())
    assert [info.path for info in store.list("odd")] == sorted(f"odd/{name}/{name}" for name in names)
    for name in names:
        assert store.get(f"odd/{name}/{name}") == name.encode()
        store.delete(f"odd/{name}/{name}")
    assert list(store.list("")) == []


def a_bad_path_is_refused_before_anything_is_written(store: ObjectStore) -> None:
    for path in BAD_PATHS:
        verbs: tuple[Callable[[], object], ...] = (
            lambda path=path: store.put(path, b""),  # type: ignore[misc]
            lambda path=path: store.put_if_absent(path, b""),  # type: ignore[misc]
            lambda path=path: store.get(path),  # type: ignore[misc]
            lambda path=path: store.head(path),  # type: ignore[misc]
            lambda path=path: store.delete(path),  # type: ignore[misc]
        )
        for verb in verbs:
            with pytest.raises(InputError):
                verb()
    with pytest.raises(InputError):
        store.get_range("a", -1, 2)
    with pytest.raises(InputError):
        store.get_range("a", 0, -2)
    assert list(store.list("")) == []


def a_scope_sees_its_own_folder_only(store: ObjectStore) -> None:
    rides, fares = ScopedStore(store, "rides"), ScopedStore(store, "jobs/fares")
    assert rides.put_if_absent("a/b", b"rides") is PutOutcome.CREATED
    assert fares.put_if_absent("a/b", b"fares") is PutOutcome.CREATED
    fares.put("c", b"")
    assert [info.path for info in fares.list("")] == ["a/b", "c"]
    assert fares.list_level("").folders == ("a",)
    assert [info.path for info in fares.list_level("a").objects] == ["a/b"]
    info = fares.head("a/b")
    assert info is not None
    assert info.path == "a/b"
    fares.delete("a/b")
    assert rides.get("a/b") == b"rides"
    assert rides.get_range("a/b", 1, 2) == b"id"
    with pytest.raises(InputError):
        rides.get("../jobs/fares/c")


def the_probe_accepts_it_and_leaves_nothing_behind(store: ObjectStore) -> None:
    probe_put_if_absent(store)
    assert list(store.list("")) == []


CASES: tuple[Callable[[ObjectStore], None], ...] = (
    put_if_absent_creates_once_and_keeps_the_first_bytes,
    put_if_absent_creates_again_after_a_delete,
    put_creates_and_replaces,
    many_objects_are_deleted_at_once_those_that_are_not_there_too,
    twenty_at_once_have_one_winner_whose_bytes_remain,
    an_empty_object_is_an_object,
    twelve_megabytes_come_back_as_they_were,
    get_range_gives_what_there_is,
    a_missing_object_is_missing_by_every_verb,
    head_tells_size_and_a_time,
    list_is_deep_and_sorted_by_path,
    list_level_shows_objects_and_folders_of_one_level,
    a_deleted_object_is_in_no_listing,
    a_long_listing_is_complete,
    names_may_hold_spaces_percents_and_other_letters,
    a_bad_path_is_refused_before_anything_is_written,
    a_scope_sees_its_own_folder_only,
    the_probe_accepts_it_and_leaves_nothing_behind,
)
