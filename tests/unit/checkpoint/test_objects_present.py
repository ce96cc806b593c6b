"""The check that all objects of a base exist: a folder of which many are wanted is listed, others are looked up."""

import pytest

from statebed.checkpoint.objects import MANY_IN_FOLDER, check_present
from statebed.errors import CorruptObjectError, MissingFileError
from statebed.storage import MemoryStore
from statebed.storage.object_store import ObjectInfo


class CountedStore(MemoryStore):
    """Counts lookups."""

    def __init__(self) -> None:
        super().__init__()
        self.lookups = 0

    def head(self, path: str) -> ObjectInfo | None:
        self.lookups += 1
        return super().head(path)


def stored(count: int) -> tuple[CountedStore, list[tuple[str, int]]]:
    store = CountedStore()
    sizes = [(f"checkpoints/1/data/{number:05}", number % 7) for number in range(count)]
    for path, size in sizes:
        store.put(path, b"x" * size)
    store.put("checkpoints/2/data/other", b"xyz")
    return store, [*sizes, ("checkpoints/2/data/other", 3)]


@pytest.mark.parametrize(("count", "lookups"), [(MANY_IN_FOLDER - 1, MANY_IN_FOLDER), (MANY_IN_FOLDER, 1)])
def test_many_objects_of_a_folder_are_found_by_one_listing(count: int, lookups: int) -> None:
    store, sizes = stored(count)
    check_present(store, sizes)
    assert store.lookups == lookups


@pytest.mark.parametrize("count", [5, MANY_IN_FOLDER])
def test_a_missing_object_and_one_of_another_size_are_named(count: int) -> None:
    store, sizes = stored(count)
    with pytest.raises(CorruptObjectError, match="00003"):
        check_present(store, [(path, size + (path.endswith("00003"))) for path, size in sizes])
    store.delete("checkpoints/1/data/00004")
    with pytest.raises(MissingFileError, match="00004"):
        check_present(store, sizes)
