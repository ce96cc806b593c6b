"""The start-up probe refuses stores on which no commit could be trusted."""

import pytest

from statebed.errors import OutcomeUnknownError, PutIfAbsentError, StoreNotWritableError, StoreUnavailableError
from statebed.storage import MemoryStore, PutOutcome, probe_put_if_absent
from statebed.testing.faults import Fault, FaultStore, Operation, Verb


class IgnoresTheCondition(MemoryStore):
    """A store like some S3-likes: the condition is accepted and ignored."""

    def put_if_absent(self, path: str, data: bytes) -> PutOutcome:
        self.put(path, data)
        return PutOutcome.CREATED


class SaysExistsButReplaces(MemoryStore):
    def put_if_absent(self, path: str, data: bytes) -> PutOutcome:
        existed = self.head(path) is not None
        self.put(path, data)
        return PutOutcome.EXISTS if existed else PutOutcome.CREATED


class ChecksThenWrites(MemoryStore):
    """Right one after another, wrong at once: everybody looks before anybody writes."""

    def put_if_absent(self, path: str, data: bytes) -> PutOutcome:
        if not path.endswith("-at-once") and self.head(path) is not None:
            return PutOutcome.EXISTS
        self.put(path, data)
        return PutOutcome.CREATED


@pytest.mark.parametrize(
    ("kind", "seen"),
    [
        (IgnoresTheCondition, "a second create of the same object was accepted"),
        (SaysExistsButReplaces, "replaced the bytes"),
        (ChecksThenWrites, "4 of 4 creates of one object at once"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_p3_a_store_that_ignores_the_condition_is_refused_with_an_explanation(
    kind: type[MemoryStore], seen: str
) -> None:
    store = kind("memory://careless")
    with pytest.raises(PutIfAbsentError, match=seen) as caught:
        probe_put_if_absent(store)
    assert caught.value.code == "PUT_IF_ABSENT"
    assert caught.value.where == "memory://careless"
    assert "If-None-Match" in caught.value.fix
    assert list(store.list("")) == []


def test_answers_that_get_lost_do_not_make_a_good_store_bad() -> None:
    def lose_the_first_try_of_each(operation: Operation) -> Fault | None:
        if operation.verb is not Verb.PUT_IF_ABSENT or operation.path in tried:
            return None
        tried.add(operation.path)
        return Fault.LOSE_ANSWER

    tried: set[str] = set()
    disk = MemoryStore()
    probe_put_if_absent(FaultStore(disk, lose_the_first_try_of_each))
    assert len(tried) == 2
    assert list(disk.list("")) == []


def test_a_store_that_never_answers_is_not_accepted() -> None:
    store = FaultStore(
        MemoryStore(), lambda operation: Fault.LOSE_WRITE if operation.verb is Verb.PUT_IF_ABSENT else None
    )
    with pytest.raises(OutcomeUnknownError):
        probe_put_if_absent(store)


def test_a_store_that_cannot_be_read_is_refused_before_anything_is_written() -> None:
    store = FaultStore(MemoryStore(), lambda _: Fault.UNAVAILABLE)
    with pytest.raises(StoreUnavailableError):
        probe_put_if_absent(store)
    assert not any(operation.verb.writes for operation in store.log)


def test_the_stores_own_reason_comes_through() -> None:
    class ReadOnly(MemoryStore):
        def put_if_absent(self, path: str, data: bytes) -> PutOutcome:
            raise StoreNotWritableError("read-only", where=self.url)

    with pytest.raises(StoreNotWritableError):
        probe_put_if_absent(ReadOnly())
