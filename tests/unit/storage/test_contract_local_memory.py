"""The store contract over local disk and memory, and over the fault-injecting wrapper without a fault."""

from collections.abc import Callable
from pathlib import Path

import pytest
import storage_contract

from statebed.errors import StorageError
from statebed.storage import LocalStore, MemoryStore, ObjectStore
from statebed.testing.faults import FaultStore


@pytest.fixture(params=["local", "memory", "faults"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "local":
        return LocalStore(tmp_path / "not" / "yet" / "there")
    return MemoryStore() if request.param == "memory" else FaultStore(MemoryStore())


@pytest.mark.parametrize("case", storage_contract.CASES, ids=lambda case: case.__name__)
def test_store_contract(case: Callable[[ObjectStore], None], store: ObjectStore) -> None:
    case(store)


def test_a_folder_is_gone_with_its_last_object_and_its_name_is_free(store: ObjectStore) -> None:
    store.put("a/b/c", b"x")
    store.put("a/d", b"x")
    store.delete("a/b/c")
    assert store.list_level("a").folders == ()
    store.delete("a/d")
    assert store.list_level("").folders == ()
    store.put("a", b"now an object")
    assert store.get("a") == b"now an object"


def test_an_object_and_a_folder_cannot_have_the_same_name(store: ObjectStore) -> None:
    store.put("a/b", b"x")
    for path in ("a", "a/b/c"):
        with pytest.raises(StorageError, match="same name") as caught:
            store.put(path, b"y")
        assert path in caught.value.where
        with pytest.raises(StorageError, match="same name"):
            store.put_if_absent(path, b"y")
    assert [info.path for info in store.list("")] == ["a/b"]
