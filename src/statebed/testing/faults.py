"""A store that fails on purpose: crashes, lost responses, pauses and damaged bytes, at chosen operations.

Every call is an `Operation` with a number, counted from 1. A plan defines which of them fail and how. A hook runs
before each of them, where a test can pause a run to turn it into a zombie. Once crashed, the store answers no more
calls: its process is dead, and calls from its `finally` blocks have no effect either.

    store = FaultStore(disk, {7: Fault.CRASH_AFTER})
    with pytest.raises(SimulatedCrash):
        workload(store)
    recover(FaultStore(disk))
"""

import enum
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from statebed.errors import OutcomeUnknownError, StoreUnavailableError
from statebed.storage.object_store import Listing, ObjectInfo, ObjectStore, PutOutcome
from statebed.storage.paths import check_range, join

T = TypeVar("T")
Damage = Callable[[bytes], bytes]


class SimulatedCrash(BaseException):
    """Death of the process. A BaseException, so that no `except Exception` can catch it."""


class Verb(enum.Enum):
    """Verbs of the store protocol."""

    PUT_IF_ABSENT = "put_if_absent"
    PUT = "put"
    GET = "get"
    GET_RANGE = "get_range"
    HEAD = "head"
    LIST = "list"
    LIST_LEVEL = "list_level"
    DELETE = "delete"

    @property
    def writes(self) -> bool:
        """Whether the verb changes the store."""
        return self in {Verb.PUT_IF_ABSENT, Verb.PUT, Verb.DELETE}


class Fault(enum.Enum):
    """Kinds of failure of an operation."""

    CRASH_BEFORE = "the process dies before the operation has its effect"
    CRASH_AFTER = "the process dies after the effect, before it hears the answer"
    UNAVAILABLE = "the store gives up without effect: StoreUnavailableError"
    LOSE_ANSWER = "the write has its effect, the answer is lost: OutcomeUnknownError"
    LOSE_WRITE = "the write has no effect, and the answer is lost: OutcomeUnknownError"
    FLIP_BYTE = "a read gives one wrong byte"
    CUT_SHORT = "a read gives only the first half"
    STORE_HALF = "a write stores only the first half, and is acknowledged"
    STORE_FLIPPED = "a write stores one wrong byte, and is acknowledged"
    STORE_NOTHING = "a write stores nothing, and is acknowledged"


_WRITES: Mapping[Fault | None, Fault] = {Fault.STORE_HALF: Fault.CUT_SHORT, Fault.STORE_FLIPPED: Fault.FLIP_BYTE}
"""Read faults that damage bytes in the same way as these write faults."""


@dataclass(frozen=True)
class Operation:
    """One call of the store: its number (from 1), verb and path."""

    number: int
    verb: Verb
    path: str


Plan = Mapping[int, Fault] | Callable[[Operation], Fault | None]


def flip_byte(offset: int = -1) -> Damage:
    """Return a damage that inverts the byte at `offset`, counted from the end if negative; b"" stays unchanged."""
    return lambda data: data and data[:offset] + bytes([data[offset] ^ 0xFF]) + data[offset:][1:]


def cut_to(length: int) -> Damage:
    """Return a damage that keeps only the first `length` bytes."""
    return lambda data: data[:length]


class FaultStore:
    """Wraps `store` and makes operations fail according to `plan`; counts and logs every operation."""

    def __init__(
        self,
        store: ObjectStore,
        plan: Plan | None = None,
        *,
        before: Callable[[Operation], None] | None = None,
    ) -> None:
        self._store = store
        self._plan = plan
        self._before = before
        self._lock = threading.Lock()
        self._log: list[Operation] = []
        self._damage: dict[str, Damage] = {}
        self._crashed = False

    def __repr__(self) -> str:
        return f"FaultStore({self._store!r})"

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def log(self) -> tuple[Operation, ...]:
        """Every operation so far, in order, including failed ones."""
        with self._lock:
            return tuple(self._log)

    @property
    def crashed(self) -> bool:
        return self._crashed

    def crash(self) -> None:
        """Make every further operation raise SimulatedCrash: a crash between two operations."""
        self._crashed = True

    def damage(self, path: str, damage: Damage) -> None:
        """Apply `damage` to every further read of `path`, and to its size."""
        self._damage[path] = damage

    def put_if_absent(self, path: str, data: bytes) -> PutOutcome:
        def effect(fault: Fault | None) -> PutOutcome:
            if fault is Fault.STORE_NOTHING:
                return PutOutcome.CREATED
            return self._store.put_if_absent(path, _spoiled(data, _WRITES.get(fault, fault)))

        return self._run(Verb.PUT_IF_ABSENT, path, effect)

    def put(self, path: str, data: bytes) -> None:
        def effect(fault: Fault | None) -> None:
            if fault is not Fault.STORE_NOTHING:
                self._store.put(path, _spoiled(data, _WRITES.get(fault, fault)))

        self._run(Verb.PUT, path, effect)

    def get(self, path: str) -> bytes:
        return self._run(Verb.GET, path, lambda fault: _spoiled(self._seen(path), fault))

    def get_range(self, path: str, start: int, length: int) -> bytes:
        check_range(start, length)
        return self._run(Verb.GET_RANGE, path, lambda fault: _spoiled(self._seen_range(path, start, length), fault))

    def head(self, path: str) -> ObjectInfo | None:
        return self._run(Verb.HEAD, path, lambda _: self._seen_head(path))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return iter(self._run(Verb.LIST, prefix, lambda _: tuple(self._store.list(prefix))))

    def list_level(self, prefix: str) -> Listing:
        return self._run(Verb.LIST_LEVEL, prefix, lambda _: self._store.list_level(prefix))

    def delete(self, path: str) -> None:
        self._run(Verb.DELETE, path, lambda _: self._store.delete(path))

    def delete_many(self, paths: Sequence[str]) -> None:
        """Delete the objects one by one, so that each is an operation that may fail, in a fixed order."""
        for path in paths:
            self.delete(path)

    def _seen(self, path: str) -> bytes:
        data = self._store.get(path)
        return self._damage[path](data) if path in self._damage else data

    def _seen_range(self, path: str, start: int, length: int) -> bytes:
        if path in self._damage:
            return self._seen(path)[start : start + length]
        return self._store.get_range(path, start, length)

    def _seen_head(self, path: str) -> ObjectInfo | None:
        info = self._store.head(path)
        return replace(info, size=len(self._seen(path))) if info and path in self._damage else info

    def _run(self, verb: Verb, path: str, effect: Callable[[Fault | None], T]) -> T:
        operation = self._enter(verb, path)
        if self._before is not None:
            self._before(operation)
            self._die_if_crashed(operation)
        fault = self._fault_of(operation)
        if fault is Fault.CRASH_BEFORE:
            raise self._die(operation)
        if fault in {Fault.UNAVAILABLE, Fault.LOSE_WRITE}:
            raise self._failure(operation, fault)
        try:
            answer = effect(fault)
        finally:  # a call that fails by itself, such as a read of a missing object, crashes all the same
            if fault is Fault.CRASH_AFTER:
                raise self._die(operation)
        if fault is Fault.LOSE_ANSWER:
            raise self._failure(operation, fault)
        return answer

    def _enter(self, verb: Verb, path: str) -> Operation:
        with self._lock:
            operation = Operation(len(self._log) + 1, verb, path)
            self._die_if_crashed(operation)
            self._log.append(operation)
            return operation

    def _fault_of(self, operation: Operation) -> Fault | None:
        if self._plan is None:
            return None
        return self._plan(operation) if callable(self._plan) else self._plan.get(operation.number)

    def _die_if_crashed(self, operation: Operation) -> None:
        if self._crashed:
            raise SimulatedCrash(f"dead before {operation.verb.value} {operation.path}")

    def _die(self, operation: Operation) -> SimulatedCrash:
        self._crashed = True
        return SimulatedCrash(f"operation {operation.number}: {operation.verb.value} {operation.path}")

    def _failure(self, operation: Operation, fault: Fault) -> StoreUnavailableError:
        # Only put_if_absent reports an unknown outcome: the other verbs can simply be repeated.
        unknown = operation.verb is Verb.PUT_IF_ABSENT and fault is not Fault.UNAVAILABLE
        kind = OutcomeUnknownError if unknown else StoreUnavailableError
        return kind(f"injected: {fault.value}", where=join(self.url, operation.path))


def _spoiled(data: bytes, fault: Fault | None) -> bytes:
    if fault is Fault.FLIP_BYTE:
        return flip_byte(len(data) // 2)(data)
    return data[: len(data) // 2] if fault is Fault.CUT_SHORT else data
