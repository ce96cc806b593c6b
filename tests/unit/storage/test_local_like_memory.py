"""The local store and its twin in memory, driven by the same random verbs, give the same answers."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from effort import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from statebed.errors import StatebedError
from statebed.storage import LocalStore, MemoryStore, ObjectStore

# Few names that get in each other's way: folders of one are objects of another, and some sort around '/'.
PATHS = st.sampled_from(["a", "a/b", "a/b/c", "a/b/d", "a-b", "a0", "b", "b/c", "..", ""])
PREFIXES = st.sampled_from(["", "a", "a/b", "a/b/c", "b", "nothing", "a/"])
DATA = st.binary(max_size=8)
SMALL = st.integers(-1, 10)


class LocalLikeMemory(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.local: ObjectStore = LocalStore(self.folder / "state")
        self.memory: ObjectStore = MemoryStore()

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @rule(path=PATHS, data=DATA)
    def put_if_absent(self, path: str, data: bytes) -> None:
        self._same(lambda store: store.put_if_absent(path, data))

    @rule(path=PATHS, data=DATA)
    def put(self, path: str, data: bytes) -> None:
        self._same(lambda store: store.put(path, data))

    @rule(path=PATHS)
    def delete(self, path: str) -> None:
        self._same(lambda store: store.delete(path))

    @rule(path=PATHS)
    def get(self, path: str) -> None:
        self._same(lambda store: store.get(path))

    @rule(path=PATHS, start=SMALL, length=SMALL)
    def get_range(self, path: str, start: int, length: int) -> None:
        self._same(lambda store: store.get_range(path, start, length))

    @rule(path=PATHS)
    def head(self, path: str) -> None:
        self._same(lambda store: (info := store.head(path)) and (info.path, info.size))

    @rule(prefix=PREFIXES)
    def list_level(self, prefix: str) -> None:
        self._same(lambda store: _level(store, prefix))

    @rule(prefix=PREFIXES)
    def list(self, prefix: str) -> None:
        self._same(lambda store: [(info.path, info.size) for info in store.list(prefix)])

    @rule()
    def reopen(self) -> None:
        self.local = LocalStore(self.folder / "state")

    @invariant()
    def the_same_objects_are_there(self) -> None:
        if hasattr(self, "folder"):
            self._same(lambda store: {info.path: store.get(info.path) for info in store.list("")})

    def _same(self, verb: Callable[[ObjectStore], Any]) -> None:
        assert _answer(self.local, verb) == _answer(self.memory, verb)


def _answer(store: ObjectStore, verb: Callable[[ObjectStore], Any]) -> Any:
    try:
        return verb(store)
    except StatebedError as error:
        return type(error)


def _level(store: ObjectStore, prefix: str) -> Any:
    level = store.list_level(prefix)
    return [(info.path, info.size) for info in level.objects], level.folders


TestLocalLikeMemory = LocalLikeMemory.TestCase
TestLocalLikeMemory.settings = settings(max_examples=examples(30), stateful_step_count=30, deadline=None)
